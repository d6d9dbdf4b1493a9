#!/bin/sh
# build.sh SOURCE OUT: builds the block server in SOURCE, and lays out what an image or a package has below OUT: blkmqd
# and blkmqctl, their manual, their completions, their units and an example of the configuration.
set -eu
source=$1 out=$2

cd "$source"
cargo build --locked --profile dist -p blkmq-daemon
programs=${CARGO_TARGET_DIR:-$source/target}/dist

share=$out/usr/share
mkdir -p "$share/man/man1" "$share/bash-completion/completions" "$share/zsh/vendor-completions" \
    "$share/fish/vendor_completions.d"
"$programs/blkmqctl" man --dir="$share/man/man1"
for name in blkmqd blkmqctl; do
    install -D -m 0755 "$programs/$name" "$out/usr/bin/$name"
    "$programs/blkmqctl" completions bash "$name" >"$share/bash-completion/completions/$name"
    "$programs/blkmqctl" completions zsh "$name" >"$share/zsh/vendor-completions/_$name"
    "$programs/blkmqctl" completions fish "$name" >"$share/fish/vendor_completions.d/$name.fish"
done
for unit in blkmqd.service blkmqd.socket; do
    install -D -m 0644 "contrib/systemd/$unit" "$out/usr/lib/systemd/system/$unit"
done
install -D -m 0644 crates/daemon/examples/serve.toml "$share/doc/blkmq/serve.toml"
