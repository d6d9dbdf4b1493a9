#!/bin/sh
# build.sh SOURCE OUT: builds the program in SOURCE, and lays out what an image or a package has below OUT: the program,
# its manual, its completions, its units and an example of its configuration.
set -eu
source=$1 out=$2

cd "$source"
cargo build --locked --profile dist -p blkmq-cli
program=${CARGO_TARGET_DIR:-$source/target}/dist/blkmq

install -D -m 0755 "$program" "$out/usr/bin/blkmq"
mkdir -p "$out/usr/share/man/man1"
"$program" man --dir="$out/usr/share/man/man1"
for file in bash:bash-completion/completions/blkmq zsh:zsh/vendor-completions/_blkmq \
    fish:fish/vendor_completions.d/blkmq.fish; do
    path=$out/usr/share/${file#*:}
    mkdir -p "$(dirname "$path")"
    "$program" completions "${file%%:*}" >"$path"
done
for unit in blkmq.service blkmq.socket; do
    install -D -m 0644 "contrib/systemd/$unit" "$out/usr/lib/systemd/system/$unit"
done
install -D -m 0644 crates/cli/examples/serve.toml "$out/usr/share/doc/blkmq/serve.toml"
