# fio-plot, with what it draws on standard output as well: for each set of axes a line of JSON with the heights of its
# bars, the points of its lines and the heights of bars in space.
import json
import fio_plot
from matplotlib.figure import Figure
from mpl_toolkits.mplot3d import Axes3D

save, bars = Figure.savefig, Axes3D.bar3d


def bar3d(self, x, y, z, dx, dy, dz, *words, **options):
    self.in_space = [float(height) for height in dz]
    return bars(self, x, y, z, dx, dy, dz, *words, **options)


def savefig(self, *words, **options):
    for axes in self.axes:
        print(json.dumps({
            "axis": axes.get_zlabel() if hasattr(axes, "get_zlabel") else axes.get_ylabel(),
            "bars": [float(bar.get_height()) for one in axes.containers for bar in one],
            "lines": [[float(value) for value in line.get_ydata()] for line in axes.lines],
            "space": getattr(axes, "in_space", []),
        }))
    return save(self, *words, **options)


Figure.savefig, Axes3D.bar3d = savefig, bar3d
fio_plot.main()
