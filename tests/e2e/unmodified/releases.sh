#!/bin/sh
# Prints the newest release of each of the last four minors of Go, as the module proxy has them.
GOWORK=off GOFLAGS=-mod=mod go list -m -versions golang.org/toolchain | tr ' ' '\n' |
	sed -n 's/^v0.0.1-\(go1\.[0-9]*\.[0-9]*\)\.linux-amd64$/\1/p' | sort -V |
	awk -F. '{ last[$1 "." $2] = $0 } END { for (minor in last) print last[minor] }' |
	sort -V | tail -4
