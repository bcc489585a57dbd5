// Package failover keeps a link endpoint of package link/rdma at work while the device under it
// fails, is removed and comes back. TCP is in the process, so no connection need be lost.
//
//	        device failed (DEVICE_FATAL, EIO or ENODEV of a verb, a completion queue in
//	        error), remove@ of its RDMA device, DELLINK of its netdev
//	 up ─────────────────────────────────────────────────────────────▶ lost
//	 ▲                                                                 │ the endpoint works on the
//	 │ opened, and the endpoint works on it;                           │ packet port, or on none;
//	 │ the packet port is muted                                        ▼ the device is closed
//	probing ◀── add@, NEWLINK, or 250 ms to 5 s have passed ────── fallback
//	 │                                                               ▲    │
//	 └── refused: the reason is kept ────────────────────────────────┘    └ MaxOutage on none:
//	                                                                        expired, and goes on
//
// One goroutine, [Link.run], owns the state; opening and closing of devices, which may take
// seconds, run beside it, one at a time. What it is told comes by channels: Done and LinkChanged of
// device and port, and signals of the kernel ([Watch]): uevents (remove@, add@) and rtnetlink
// (DELLINK, NEWLINK). Either may come first, or not at all: the device's end alone is enough, and
// so is the timer. A netdev that moves to another network namespace (DELLINK with NEW_NETNSID)
// takes nothing from its device, whose rings go on.
//
// The packet port (package link/packet) is opened at start, muted, so that nothing can keep it from
// working when it is needed. It ends with its netdev, and is opened again when that is there again.
//
// The port's netdev may send by others, as net_failover's does: by the failed device's own until
// the kernel has taken its carrier away, and by a standby from then on. What is sent in between is
// lost, and switches look for us where we were. So when netdevs change while the port carries
// frames, Config.Changed is told Rerouted.
//
// What is lost with the device is what its rings had and had not sent, as on a wire. Whatever the
// endpoint sends it keeps until it is acknowledged, and repeats at once when there is a backend
// again: see rdma.Endpoint.Switch. A peer repeats what it sent when its own timer expires.
package failover
