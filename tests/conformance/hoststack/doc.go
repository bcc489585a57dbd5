// Package hoststack compares package stack with the sockets of the machine's kernel.
//
// Each behaviour is a function that opens sockets in a world, does something to them, and notes
// what it saw: bytes, addresses, errors with everything that errors.Is and a type assertion could
// find in them. It is run in two worlds, the kernel's (through package net) and ours (through
// package stack, two of them on a cable in memory), and the two lists of notes must be equal. A
// difference is a failure, unless the behaviour is named, with a reason, in byDesign.
//
// The kernel is the machine's loopback, server and client in one, for most tables. What depends on
// the link, or on a host's having more addresses, runs in two network namespaces on a cable.
//
// The number of compared behaviours and of differences is at the end of the output of go test -v,
// and of make test.
//
// To add a behaviour, add a row to one of the tables in the table_*_test.go files.
package hoststack
