// Package netlink listens to what the kernel tells unasked about devices, addresses and routes, and
// has the header that requests of generic netlink begin with.
package netlink
