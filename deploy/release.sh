#!/bin/bash
# Builds a release of the commit that is checked out into dist: static binaries for amd64 and arm64,
# a Debian package of each, a software bill of materials (CycloneDX) and checksums. The commit must
# be tagged with the version, because go build takes the version of the binary from the tag.
# docs/releasing.md has the steps around it.
set -euo pipefail
cd "$(dirname "$0")/.."
NFPM=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.43.0
SBOM=github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0

fail() { echo "release: $*" >&2; exit 1; }
[ -z "$(git status --porcelain)" ] || fail "the tree has changes: commit them first"
version=$(git describe --tags --exact-match --match 'v*' 2>/dev/null) ||
	fail "the commit has no version: git tag -a v0.1.0 first"
rm -rf dist && mkdir -p dist/share
# The tools are built for this machine, whatever the target of a build below.
nfpm() { GOFLAGS= go run "$NFPM" "$@"; }
sbom() { GOFLAGS= go run "$SBOM" "$@"; }

for arch in amd64 arm64; do
	bin=dist/rdma-netstack-$version-linux-$arch
	CGO_ENABLED=0 GOFLAGS= GOOS=linux GOARCH=$arch \
		go build -pgo=auto -buildvcs=true -trimpath -ldflags=-s -o "$bin" ./cmd/rdma-netstack
	sbom bin -json -licenses=false -noserial -output "$bin.cdx.json" "$bin"
done
host=dist/rdma-netstack-$version-linux-$(go env GOHOSTARCH)
[ -e "$host" ] || fail "this machine is neither amd64 nor arm64: its own binary makes the man pages"
"$host" version | grep -qF "rdma-netstack $version," || fail "the binary says $("$host" version)"
mkdir dist/share/man && "$host" man --dir dist/share/man
for shell in bash zsh fish; do "$host" completion $shell >"dist/share/completion.$shell"; done
sed 's#/usr/local/bin/#/usr/bin/#' "deploy/systemd/rdma-netstack@.service" >dist/share/unit
gzip -9n dist/share/man/*

for arch in amd64 arm64; do
	ARCH=$arch VERSION=$version BINARY=dist/rdma-netstack-$version-linux-$arch \
		nfpm package --config deploy/nfpm.yaml --packager deb \
		--target "dist/rdma-netstack_${version#v}_$arch.deb" >/dev/null
done
rm -r dist/share
(cd dist && sha256sum -- * >SHA256SUMS)
ls -l dist
