//! Public formats with columns, one row each. Units and columns follow the descriptions published with the data.

/// A format with columns.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The name, as `--format` accepts it.
    pub name: &'static str,
    /// The columns, as [`Description`](crate::Description) reads them.
    pub columns: &'static str,
    /// The shape of a row, by which a trace without a header is recognised, with a letter for each cell: `i` a whole
    /// number, `f` a number with a fraction, `n` either, `w` a word for read or write, `b` 0 or 1, `t` any text, `*`
    /// any further cells. Empty: not recognised.
    pub shape: &'static str,
    /// The origin of the format.
    pub about: &'static str,
    /// A caveat that reports must mention.
    pub caution: Option<&'static str>,
}

/// All presets.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "cloudphysics",
        columns: "time=us,time_us op=word,op offset=sectors,sector size=bytes,bytes",
        shape: "",
        about: "CloudPhysics (2013) as CSV with a header; the binary form is vscsi",
        caution: None,
    },
    Preset {
        name: "msr",
        columns: "time=100ns,1 group=2+3 volume=2+3 op=word,4 offset=bytes,5 size=bytes,6 latency=100ns,7",
        shape: "itiwiii",
        about: "MSR Cambridge (2007): ticks of 100 ns since 1601, host and disk are the tenant",
        caution: None,
    },
    Preset {
        name: "alibaba",
        columns: "group=1 volume=1 op=word,2 offset=bytes,3 size=bytes,4 time=us,5",
        shape: "iwiii",
        about: "Alibaba block traces (2020): each device is a tenant",
        caution: None,
    },
    Preset {
        name: "tencent",
        columns: "time=s,1 offset=sectors,2 size=sectors,3 op=0r1w,4 group=5 volume=5",
        shape: "iiibi",
        about: "Tencent CBS (2018): each volume is a tenant",
        caution: None,
    },
    Preset {
        name: "systor17",
        columns: "time=s,Timestamp latency=s,Response op=word,IOType group=LUN volume=LUN offset=bytes,Offset size=bytes,Size",
        shape: "",
        about: "SYSTOR '17 (2016): each LUN is a tenant",
        caution: None,
    },
    Preset {
        name: "thesios",
        columns: "time=s,start_time volume=filename offset=bytes,file_offset group=application class=service_class \
                  op=word,op_type size=bytes,request_io_size_bytes",
        shape: "",
        about: "Thesios (Google, 2024): applications are tenants, service classes are classes",
        caution: Some(
            "places are made up: the trace has files and offsets in them, no places on a disk",
        ),
    },
    Preset {
        name: "spc",
        columns: "group=1 volume=1 offset=sectors,2 size=bytes,3 op=word,4 time=s,5",
        shape: "iiiwn",
        about: "SPC (UMass OLTP and WebSearch): each ASU is a tenant",
        caution: None,
    },
    Preset {
        name: "fiu",
        columns: "delimiter=space time=ns,1 group=3 offset=sectors,4 size=sectors,5 op=word,6 volume=7+8",
        shape: "iitiiwii*",
        about: "FIU (2008 to 2014): each process is a tenant",
        caution: None,
    },
    Preset {
        name: "mqsim",
        columns: "delimiter=space time=ns,1 group=2 volume=2 offset=sectors,3 size=sectors,4 op=1r0w,5",
        shape: "",
        about: "MQSim's traces: nanoseconds",
        caution: Some(
            "1 is taken for a read and 0 for a write; where a converter wrote the reverse, describe the columns with op=0r1w,5",
        ),
    },
    Preset {
        name: "disksim",
        columns: "delimiter=space time=ms,1 group=2 volume=2 offset=sectors,3 size=sectors,4 op=1r0w,5",
        shape: "fiiib",
        about: "DiskSim's ASCII traces: milliseconds",
        caution: Some(
            "1 is taken for a read and 0 for a write; where a converter wrote the reverse, describe the columns with op=0r1w,5",
        ),
    },
    Preset {
        name: "biosnoop",
        columns: "delimiter=space wide=COMM stamp=completion time=s,TIME(s) group=COMM volume=DISK op=word,T \
                  offset=sectors,SECTOR size=bytes,BYTES queue=ms,QUE(ms)? latency=ms,LAT(ms)",
        shape: "",
        about: "biosnoop of bcc: each command is a tenant; arrivals are completions less the latency",
        caution: None,
    },
    Preset {
        name: "io-tracer",
        columns: "stamp=completion time=date,timestamp group=command op=word,operation offset=sectors,sector size=bytes,size \
                  latency=ms,latency_ms",
        shape: "",
        about: "io-tracer: each command is a tenant; arrivals are completions less the latency",
        caution: None,
    },
    Preset {
        name: "csv",
        columns: "time=ns,time_ns op=word,op offset=bytes,offset size=bytes,size group=tenant volume=volume class=class \
                  latency=ns,latency_ns?",
        shape: "",
        about: "the CSV that blkmq trace convert writes",
        caution: None,
    },
];
