// Package uplink opens what carries the frames of a stack and keeps it at work: the rings of an
// mlx5 device, those of each member of a bond, or packet sockets of a netdev. The device may fail,
// be removed, and come back as another model under another name: see package failover for the
// states, which this package gives what to open.
//
//	Open ──▶ rings of one device ─────────┐
//	     ──▶ rings of a bond's members ───┤── Keep ──▶ outlives its device
//	     ──▶ packet sockets ──────────────┘
//
// On the host's own address ([Config.Host]) the packet sockets of the netdev are open beside the
// rings, and bring what no rule of the device leads there.
package uplink
