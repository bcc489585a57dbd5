#!/bin/sh
# Builds the tree and runs its short tests against another gVisor than go.mod's: the newest that the module proxy has, or the
# version in GVISOR. go.mod is not changed: a copy is used. Ends after LIMIT (default 15m).
set -e
version=${GVISOR:-latest}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp go.mod go.sum "$copy"
export CGO_ENABLED=0
go get -modfile="$copy/go.mod" gvisor.dev/gvisor@"$version"
echo "gVisor $(go list -m -modfile="$copy/go.mod" -f '{{.Version}}' gvisor.dev/gvisor), in go.mod $(go list -m -f '{{.Version}}' gvisor.dev/gvisor)"
timeout "${LIMIT:-15m}" sh -ec '
	go vet -modfile="$1" ./...
	go test -modfile="$1" -short ./stack/... ./link/... ./internal/netclock ./apps/... ./tests/conformance/tcp ./tests/conformance/upstream
' sh "$copy/go.mod"
