// Package slice has package net's names for the sockets of TCP and UDP, which a slice provides
// instead of the kernel. The generator of tests/conformance/suites adds them to the package in
// which Go's own tests of package net are compiled. The names, and the single stack of the whole
// process, therefore follow package net. Other networks ("unix", "ip") are left to package net.
package slice
