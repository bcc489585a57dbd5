package main

import (
	"net/netip"
	"slices"

	"github.com/rdma-netstack/rdma-netstack/stack"
)

// Stacks and links of an end.
const (
	stackKernel = "kernel"
	stackGvisor = "gvisor"
	stackOurs   = "ours"

	linkFD     = "fdbased"
	linkXDP    = "xdp"
	linkPipe   = "pipe"
	linkInline = "inline"
	linkSim    = "sim"
	linkPacket = "packet"
	linkXSK    = "xsk" // ours
)

// Plumbing between server and client.
const (
	plumbVeth  = "veth"       // offloads on: 64 KiB super-segments pass
	plumbPlain = "veth plain" // offloads off on both ends: frames as on a wire
	plumbTAP   = "tap"
	plumbRelay = "tap relay"      // two TAPs and a process that carries frames between them
	plumbMTU   = "tap relay, MTU" // as tap relay, and each frame is a packet within the MTU
	plumbWAN   = "wan"            // as tap relay, without offloads; it delays and loses frames
	plumbMem   = "memory"         // both ends in one process
)

// end is a stack and its link.
type end struct {
	Stack, Link string
	Dispatch    string // of fdbased: readv, recvmmsg, mmap
	GSO         string // of fdbased: "", host, gvisor
	// of fdbased: one processor, so that packets are delivered where they are read
	Inline bool
	GRO    bool       // of fdbased
	FIFO   bool       // gVisor's queueing discipline in front
	Native bool       // of xdp: in the driver
	Queues int        // of ours
	From   netip.Addr // of a kernel's client
	// of ours in memory: unsegmented frames cross the cable; rings still get frames of the MTU
	Carry bool
	// of ours: payload is sent from where netstack keeps it, see stack.ZeroCopySend
	InPlace bool
	// of ours through AF_XDP: by what frames leave
	Send stack.XDPOptions
}

// peer is one configuration.
type peer struct {
	Name, About string
	End         end
	Plumbing    string
	Procs       int  // GOMAXPROCS of the server; 0: all
	Apart       bool // the server has a processor, its clients the other
	Extra       bool // not in quick runs
}

func (p *peer) ours() bool   { return p.End.Stack == stackOurs }
func (p *peer) memory() bool { return p.Plumbing == plumbMem }
func (p *peer) wan() bool    { return p.Plumbing == plumbWAN }

// group is the peers that a peer is compared with.
func (p *peer) group() string {
	switch {
	case p.memory():
		return groupMemory
	case p.wan():
		return groupWAN
	case p.Apart:
		return groupApart
	}
	return groupShared
}

// plain reports whether the veth pair must not carry super-segments.
func (p *peer) plain() bool { return p.Plumbing == plumbPlain }

func fd(dispatch, gso string) end {
	return end{Stack: stackGvisor, Link: linkFD, Dispatch: dispatch, GSO: gso}
}

// peers are all configurations. The first of each plumbing is the kernel's own stack, if there is
// one.
func peers() []*peer {
	return slices.Concat(vethPeers(), plainPeers(), tapPeers(), apartPeers(), wanPeers(),
		memPeers())
}

func kernelEnd() end { return end{Stack: stackKernel} }
func ourEnd() end    { return end{Stack: stackOurs, Link: linkSim, Queues: 1} }
func packetEnd() end { return end{Stack: stackOurs, Link: linkPacket, Queues: 1} }
func xskEnd() end    { return end{Stack: stackOurs, Link: linkXSK} }
func xdpEnd() end    { return end{Stack: stackGvisor, Link: linkXDP, FIFO: true} }

// vethPeers reach the clients over a veth pair.
func vethPeers() []*peer {
	gso := fd("recvmmsg", "host")
	inline, runsc := gso, gso
	inline.Inline, runsc.FIFO = true, true
	return []*peer{
		{Name: "kernel/veth", About: "Linux TCP/IP over a veth pair", End: kernelEnd(),
			Plumbing: plumbVeth},
		{Name: "fd", About: "gVisor fdbased, AF_PACKET, recvmmsg, no GSO", End: fd("recvmmsg", ""),
			Plumbing: plumbVeth, Extra: true},
		{Name: "fd-gso", About: "gVisor fdbased, AF_PACKET, recvmmsg, host GSO", End: gso,
			Plumbing: plumbVeth},
		{Name: "fd-gso-inline", About: "fd-gso, delivering inline", End: inline,
			Plumbing: plumbVeth},
		{Name: "fd-gso-fifo", About: "fd-gso behind gVisor's fifo, as runsc has it", End: runsc,
			Plumbing: plumbVeth, Extra: true},
		{Name: "fd-readv-gso", About: "gVisor fdbased, AF_PACKET, readv, host GSO",
			End: fd("readv", "host"), Plumbing: plumbVeth, Extra: true},
		{Name: "fd-mmap", About: "gVisor fdbased, AF_PACKET, PACKET_MMAP, no GSO",
			End: fd("mmap", ""), Plumbing: plumbVeth, Extra: true},
		{Name: "ours/veth", About: "ours: software ConnectX on AF_PACKET", End: ourEnd(),
			Plumbing: plumbVeth},
		{Name: "packet", About: "ours: packet sockets (link/packet), no NIC of any kind",
			End: packetEnd(), Plumbing: plumbVeth},
	}
}

// plainPeers reach them over a veth pair without offloads, so that frames are within the MTU as on
// a network.
func plainPeers() []*peer {
	plain, plainGSO := fd("recvmmsg", ""), fd("recvmmsg", "gvisor")
	plain.Inline, plain.GRO, plainGSO.FIFO = true, true, true
	native := xdpEnd()
	native.Native = true
	rings := xskEnd()
	rings.Send.Send = stack.XDPSendRings
	return []*peer{
		{Name: "packet/plain", About: "ours: packet sockets, veth without offloads",
			End: packetEnd(), Plumbing: plumbPlain, Extra: true},
		{Name: "xsk", About: "ours: AF_XDP, sending by packet sockets, veth without offloads",
			End: xskEnd(), Plumbing: plumbPlain, Extra: true},
		{Name: "xsk-rings", About: "ours: AF_XDP both ways, veth without offloads", End: rings,
			Plumbing: plumbPlain, Extra: true},
		{Name: "kernel/plain", About: "Linux TCP/IP, veth without offloads", End: kernelEnd(),
			Plumbing: plumbPlain, Extra: true},
		{Name: "fd-plain", About: "gVisor fdbased, recvmmsg, inline, GRO, veth without offloads",
			End: plain, Plumbing: plumbPlain, Extra: true},
		{Name: "fd-plain-gvgso",
			About: "gVisor fdbased, recvmmsg, gVisor GSO, fifo, veth without offloads",
			End:   plainGSO, Plumbing: plumbPlain, Extra: true},
		{Name: "xdp", About: "gVisor link/xdp, generic XDP", End: xdpEnd(), Plumbing: plumbPlain},
		{Name: "xdp-native", About: "gVisor link/xdp, XDP in the veth driver", End: native,
			Plumbing: plumbPlain, Extra: true},
		{Name: "ours/plain", About: "ours: software ConnectX on AF_PACKET, veth without offloads",
			End: ourEnd(), Plumbing: plumbPlain, Extra: true},
	}
}

// tapPeers reach them over a TAP.
func tapPeers() []*peer {
	four, inPlace := ourEnd(), ourEnd()
	four.Queues, inPlace.InPlace = 4, true
	return []*peer{
		{Name: "kernel/tap", About: "Linux TCP/IP, two TAPs and a process between",
			End:      kernelEnd(),
			Plumbing: plumbRelay},
		{Name: "kernel/tap-mtu", About: "kernel/tap without super-segments, as a wire carries them",
			End: kernelEnd(), Plumbing: plumbMTU, Extra: true},
		{Name: "fd-tap", About: "gVisor fdbased on a TAP", End: fd("readv", ""),
			Plumbing: plumbTAP},
		{Name: "ours/tap", About: "ours: software ConnectX on a TAP", End: ourEnd(),
			Plumbing: plumbTAP},
		{Name: "ours/tap-inplace", About: "the same, payload is not copied to be sent",
			End: inPlace, Plumbing: plumbTAP, Extra: true},
		{Name: "ours/tap-1core", About: "the same with GOMAXPROCS=1", End: ourEnd(),
			Plumbing: plumbTAP,
			Procs:    1, Extra: true},
		{Name: "ours/tap-4q", About: "the same with four queues", End: four, Plumbing: plumbTAP,
			Extra: true},
	}
}

// apartPeers have a processor for the server and one for its clients.
func apartPeers() []*peer {
	inline, inPlace := fd("recvmmsg", "host"), ourEnd()
	inline.Inline, inPlace.InPlace = true, true
	rings := xskEnd()
	rings.Send.Send = stack.XDPSendRings
	return []*peer{
		{Name: "kernel/tap-apart",
			About: "kernel/tap, the server and its cable on one processor, the clients on the " +
				"other", End: kernelEnd(), Plumbing: plumbRelay, Apart: true, Extra: true},
		{Name: "kernel/tap-mtu-apart",
			About: "kernel/tap-mtu, the server and its cable on one processor, the clients on " +
				"the other", End: kernelEnd(), Plumbing: plumbMTU, Apart: true, Extra: true},
		{Name: "fd-tap-apart",
			About: "fd-tap, the server on one processor, the clients on the other",
			End:   fd("readv", ""), Plumbing: plumbTAP, Apart: true, Extra: true},
		{Name: "fd-gso-inline-apart", About: "fd-gso-inline, likewise", End: inline,
			Plumbing: plumbVeth, Apart: true, Extra: true},
		{Name: "xdp-apart", About: "xdp, likewise", End: xdpEnd(), Plumbing: plumbPlain,
			Apart: true,
			Extra: true},
		{Name: "ours/tap-apart",
			About: "ours/tap, the server and its NIC on one processor, the clients on the other",
			End:   ourEnd(), Plumbing: plumbTAP, Apart: true, Extra: true},
		{Name: "ours/tap-inplace-apart", About: "ours/tap-inplace, likewise", End: inPlace,
			Plumbing: plumbTAP, Apart: true, Extra: true},
		{Name: "packet/plain-apart", About: "packet/plain, the server on one processor, the " +
			"clients on the other", End: packetEnd(), Plumbing: plumbPlain, Apart: true,
			Extra: true},
		{Name: "xsk-apart", About: "xsk, likewise", End: xskEnd(), Plumbing: plumbPlain,
			Apart: true, Extra: true},
		{Name: "xsk-rings-apart", About: "xsk-rings, likewise", End: rings,
			Plumbing: plumbPlain, Apart: true, Extra: true},
	}
}

// wanPeers reach them over a long cable that loses frames.
func wanPeers() []*peer {
	inline := fd("recvmmsg", "host")
	inline.Inline = true
	return []*peer{
		{Name: "kernel/wan", About: "Linux TCP/IP, 40 ms away, 1 % of frames lost",
			End: kernelEnd(), Plumbing: plumbWAN, Extra: true},
		{Name: "fd-gso-inline/wan", About: "fd-gso-inline, likewise", End: inline,
			Plumbing: plumbWAN, Extra: true},
		{Name: "ours/wan", About: "ours: software ConnectX on AF_PACKET, likewise",
			End: ourEnd(), Plumbing: plumbWAN, Extra: true},
		{Name: "packet/wan", About: "ours: packet sockets, likewise", End: packetEnd(),
			Plumbing: plumbWAN, Extra: true},
	}
}

// memPeers are two stacks in one process.
func memPeers() []*peer {
	carry := ourEnd()
	carry.Carry = true
	carryFour, inPlace := carry, carry
	carryFour.Queues, inPlace.InPlace = 4, true
	ceiling := end{Stack: stackGvisor, Link: linkInline}
	return []*peer{
		{Name: "mem-pipe", About: "two gVisor stacks on link/pipe, one core",
			End: end{Stack: stackGvisor, Link: linkPipe}, Plumbing: plumbMem, Procs: 1},
		{Name: "mem-ceiling",
			About: "two gVisor stacks, no link: 64 KiB packets handed over uncopied, one core",
			End:   ceiling, Plumbing: plumbMem, Procs: 1},
		{Name: "mem-ours",
			About: "two of our stacks, software ConnectXes on a cable, one core; the receiving " +
				"card cuts segments", End: carry, Plumbing: plumbMem, Procs: 1},
		{Name: "mem-ours-inplace", About: "the same, payload is not copied to be sent",
			End: inPlace, Plumbing: plumbMem, Procs: 1, Extra: true},
		{Name: "mem-ours-cut", About: "the same, the sending card cuts them", End: ourEnd(),
			Plumbing: plumbMem, Procs: 1, Extra: true},
		{Name: "mem-ceiling-2core", About: "mem-ceiling on two cores", End: ceiling,
			Plumbing: plumbMem, Extra: true},
		{Name: "mem-ours-2core", About: "mem-ours on two cores", End: carry, Plumbing: plumbMem,
			Extra: true},
		{Name: "mem-ours-4q", About: "mem-ours on two cores, four queues", End: carryFour,
			Plumbing: plumbMem, Extra: true},
	}
}
