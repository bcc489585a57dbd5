// Package netlink listens to what the kernel tells unasked about devices, addresses and routes.
package netlink
