// Package world provides the hosts for tests of real services: a server host and a client host on
// one wire. The client is the kernel of a network namespace, with common client programs. The
// server host is a stack on a slice of a software ConnectX whose wire is a TAP interface of that
// namespace or, as the control of an experiment, another namespace's kernel.
//
// The services themselves are in modules of their own beside this package, so that a program that
// embeds the stack does not get their dependencies.
package world
