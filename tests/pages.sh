#!/bin/bash
# Runs the tests of packages that pages matter to as on kernels whose pages are of 16 and 64 KiB, as
# those of arm64: the toolchain is told of such pages, and memory is mapped at multiples of them. It
# does not run on such a kernel, which tests/vm/arm64 is for. pages.sh [PACKAGE...]
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$(go env GOROOT)
[ $# -gt 0 ] || set -- ./internal/mmio ./dv/uverbs ./dv ./simnic ./simnic/kernel

# change FILE FROM TO...: an overlay of FILE with each TO for its FROM, which the file must have.
overlay=
change() {
	local file=$1 copy="$work/$size.$(basename "$1")"
	cp "$file" "$copy"
	while shift && [ $# -gt 0 ]; do
		grep -qF -- "$1" "$copy" || { echo "pages: $file has no longer: $1"; exit 1; }
		FROM=$1 TO=$2 perl -pi -e 's/\Q$ENV{FROM}\E/$ENV{TO}/' "$copy"
		shift
	done
	overlay="$overlay${overlay:+,}\"$file\":\"$copy\""
}

status=0
for size in 16384 65536; do
	overlay=
	change "$root/src/runtime/runtime.go" 'syscall_Getpagesize() int { return int(physPageSize) }' \
		"syscall_Getpagesize() int { return $size }"
	change "$PWD/internal/mmio/map_linux_unsafe.go" 'unix.MmapPtr(fd,' 'mapAligned(fd,'
	cat >>"$work/$size.map_linux_unsafe.go" <<-END

	// mapAligned maps memory at a multiple of the page size that tests are told of.
	func mapAligned(fd int, offset int64, _ unsafe.Pointer, size uintptr, prot, flags int) (unsafe.Pointer, error) {
		if flags&unix.MAP_HUGETLB != 0 {
			return unix.MmapPtr(fd, offset, nil, size, prot, flags)
		}
		size = (size + 4095) &^ 4095
		all, err := unix.MmapPtr(-1, 0, nil, size+$size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return nil, err
		}
		before := -uintptr(all) & ($size - 1)
		at := unsafe.Add(all, before)
		p, err := unix.MmapPtr(fd, offset, at, size, prot, flags|unix.MAP_FIXED)
		if err != nil {
			return nil, errors.Join(err, unix.MunmapPtr(all, size+$size))
		}
		if before > 0 {
			err = unix.MunmapPtr(all, before)
		}
		if after := $size - before; err == nil && after > 0 {
			err = unix.MunmapPtr(unsafe.Add(at, size), after)
		}
		return p, err
	}
	END
	# the kernel has a byte for each page of its own
	change "$PWD/internal/mmio/user_linux_unsafe.go" 'residency [1024]byte' \
		'residency [1024 * 16]byte' 'len(residency)' 'len(residency)/16'
	echo "{\"Replace\":{$overlay}}" >"$work/$size.json"
	echo "pages of $size bytes"
	CGO_ENABLED=0 go test -overlay "$work/$size.json" -vet=off -count=1 -timeout 20m ${TESTFLAGS:-} "$@" || status=1
done
exit $status
