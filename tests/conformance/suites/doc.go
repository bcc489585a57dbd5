// Command suites runs the Go toolchain's own tests of packages net and net/http, and those of
// libraries, on a slice and on the host's stack, and compares the results test by test. This tree
// contains no copy of their code: the tests are taken from GOROOT at run time, into a temporary
// module, and those of libraries from the module cache.
//
// Tests of package net call its functions by unqualified names, unexported ones too. They are
// compiled in a package that has all of package net's names: those of package slice for sockets of
// TCP and UDP, the rest of package net. Declarations that then do not compile test internals of
// package net, and are left out on both sides.
//
// Tests of net/http (those of package http_test) are compiled unchanged. An overlay over GOROOT (go
// help build, -overlay) makes net.Listen and net.Dialer call two hooks first, which on the slice
// are slice.ListenLocal and slice.DialLocal; net/http itself is unchanged.
//
// Tests of quic-go and pion/transport, in the versions that contrib has, are built as they are, but
// for one file that installs package localhost: for the host by go test, for the slice as
// rdma-netstack test does, with package net's types on slices. What they send to 127.0.0.1 and ::1
// then crosses two software NICs, each socket on one of its own; what crossed is counted, and
// nothing is a failure.
//
// A test that ends differently on the two sides must be in the file bydesign, with its reason; an
// entry without a difference is a failure as well.
package main
