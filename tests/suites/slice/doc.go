// Package slice has package net's names for what a slice does in place of the kernel: sockets of
// TCP and UDP. The generator of tests/suites puts them into the package that Go's own tests of
// package net are compiled in, so the names, and that there is one stack for the whole process, are
// package net's. Other networks ("unix", "ip") are left to package net.
package slice
