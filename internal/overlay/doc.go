// Package overlay makes go build -overlay put the sockets of a Go program on a slice without a
// change to the program: it reads package net of the user's own GOROOT, inserts a prologue into
// each function that knows a descriptor, and adds one file of ours, through which package net calls
// package unmodified.
//
// Functions are found by their names and signatures, never by files. A package net with a function
// that has another signature, or that uses descriptors and is not known, is refused with the name
// of the function: a socket that the kernel serves in silence would be worse. No line of Go's
// source is kept here.
package overlay
