// Command suites runs the Go toolchain's own tests of packages net and net/http on a slice and on
// the host's stack, and compares, test by test, what came of them. It copies nothing of Go into
// this tree: the tests are taken from GOROOT when it runs, into a temporary module.
//
// Tests of package net call what they test by its own names, unexported ones too. They are compiled
// in a package that has all of package net's names: those of package slice for sockets of TCP and
// UDP, the rest of package net. What then does not compile, declaration by declaration, tests the
// insides of package net, and is left out on both sides.
//
// Tests of net/http (those of package http_test) are compiled as they are. An overlay over GOROOT
// (go help build, -overlay) lets net.Listen and net.Dialer ask two functions first, which on the
// slice are slice.ListenLocal and slice.DialLocal; nothing of net/http is changed.
//
// A test that ends differently on the two sides has to be in the file bydesign, with its reason;
// one that is there for nothing is a failure as well.
package main
