#!/usr/bin/env bash
# fetch.sh [uml | cloud]...: fetches kernels into target/guest, both if none is named, from the sources of packages of this
# machine. Nothing is installed: QEMU's packages may not stand beside those of its tools that come from elsewhere.
set -euo pipefail
exec 2>&1
cd "$(dirname "$0")/../.."
mkdir -p target/guest
cd target/guest

# The newest of Debian's kernels for virtual machines; a package without a full version depends on one of the others.
newest_cloud() {
    apt-cache search --names-only '^linux-image-[0-9]+\.[0-9]+\.[0-9].*-cloud-amd64$' | cut -d' ' -f1 | sort -V | tail -1
}

# QEMU with the libraries that are missing; empty where it is installed.
qemu() {
    apt-get install -s --no-install-recommends qemu-system-x86 | awk '$1 == "Inst" { print $2 }'
}

unpack() { # FOLDER PACKAGE...
    local folder=$1 got file
    shift
    got=$(mktemp -d)
    (cd "$got" && apt-get download -qq -o APT::Sandbox::User=root "$@")
    for file in "$got"/*.deb; do dpkg-deb -x "$file" "$folder"; done
    rm -r "$got"
}

for kernel in ${*:-uml cloud}; do
    [ -e "$kernel" ] && continue
    rm -rf "$kernel.part"
    case $kernel in
    uml) unpack uml.part user-mode-linux ;;
    cloud)
        image=$(newest_cloud)
        [ -n "$image" ] || { echo "there is no package linux-image-*-cloud-amd64"; exit 1; }
        emulator=$(qemu)
        # shellcheck disable=SC2086 # a list of names
        unpack cloud.part "$image" $emulator
        /sbin/depmod -b cloud.part "${image#linux-image-}"
        ;;
    *) echo "$kernel; accepted: uml, cloud"; exit 1 ;;
    esac
    mv "$kernel.part" "$kernel"
done
