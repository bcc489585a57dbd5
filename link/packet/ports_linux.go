package packet

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// SetPorts says which ports of the host's addresses are ours, in place of those of the call before.
// It is for a port with Config.Host; a closed one does nothing.
func (p *Port) SetPorts(list []Ports) error {
	return p.changePorts(func(*portTable) *portTable { return newPortTable(list) })
}

// ChangePorts does as SetPorts for what was added and removed since, at a cost that does not
// depend on what else there is: single ports, no blocks.
func (p *Port) ChangePorts(added, removed []Ports) error {
	if i := slices.IndexFunc(slices.Concat(added, removed), func(p Ports) bool {
		return p.First != p.Last
	}); i >= 0 {
		return fmt.Errorf("change ports of %s: use SetPorts for a block of them", p.name)
	}
	return p.changePorts(func(t *portTable) *portTable {
		t.drop(removed)
		return t.with(added)
	})
}

func (p *Port) changePorts(change func(*portTable) *portTable) error {
	if !p.cfg.Host {
		return fmt.Errorf("%s has a MAC of its own, whose ports are all ours", p.name)
	}
	g := &p.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.ports.Store(change(p.ports.Load()))
	return p.attachFilters(nil, false)
}

// filterPorts says how many ports of TCP, and of UDP, the kernel's filter knows one by one. Of more
// it passes all, and what is not ours is dropped here.
const filterPorts = 256

// Where the kernel's filter finds what: offsets in a frame, and what it knows beside the frame.
const (
	adPacketType    = -0x1000 + 4
	packetHost      = 0 // PACKET_HOST: sent to the interface's own address
	packetMulticast = 2 // PACKET_MULTICAST; 1 is PACKET_BROADCAST, above are other hosts'

	atType, atFragment, atProto4 = 12, ethLen + 6, ethLen + 9
	atProto6, atTransport6       = ethLen + 6, ethLen + ipv6Len
	offsetPort, offsetTypeOfICMP = 2, 0
	indirect                     = unix.BPF_LD | unix.BPF_IND
	loadIPv4HeaderLength         = unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH
	loadIndexImmediate           = unix.BPF_LDX | unix.BPF_W | unix.BPF_IMM
)

// classicFilter returns a classic BPF program that passes what may be ours: the addresses are not
// looked at. Of frames to groups and to all it passes what tells of neighbours, and datagrams,
// which may be for one host all the same (RFC 1122 section 3.3.6). Every test is followed by its
// own return, so that no jump is long.
func (t *portTable) classicFilter() []unix.SockFilter {
	toSeveral := slices.Concat([]unix.SockFilter{
		loadFrom(unix.BPF_H, atType), jumpIf(unix.BPF_JEQ, typeARP, 0, 1), pass,
	}, ifEqual(typeIPv4, []unix.SockFilter{
		loadFrom(unix.BPF_B, atProto4), jumpIf(unix.BPF_JEQ, protoUDP, 0, 1), pass, drop,
	}), ifEqual(typeIPv6, slices.Concat([]unix.SockFilter{
		loadFrom(unix.BPF_B, atProto6),
		jumpIf(unix.BPF_JEQ, protoUDP, 1, 0),
		jumpIf(unix.BPF_JEQ, extFragment, 0, 1), pass,
	}, ifEqual(protoICMPv6, []unix.SockFilter{
		loadFrom(unix.BPF_B, atTransport6),
		jumpIf(unix.BPF_JEQ, neighborSolicitation, 1, 0),
		jumpIf(unix.BPF_JEQ, neighborAdvertisement, 0, 1), pass, drop,
	}), []unix.SockFilter{drop})), []unix.SockFilter{drop})
	program := []unix.SockFilter{
		loadFrom(unix.BPF_W, adVLANPresent), jumpIf(unix.BPF_JEQ, 0, 4,
			0), // a mere priority is no tag
		loadFrom(unix.BPF_H, adVLANTag),
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: vlanID},
		jumpIf(unix.BPF_JEQ, 0, 1, 0), drop,
		loadFrom(unix.BPF_W, adPacketType), jumpIf(unix.BPF_JGT, packetMulticast, 0, 1), drop,
		jumpIf(unix.BPF_JEQ, packetHost, uint8(len(toSeveral)), 0),
	}
	program = append(program, toSeveral...)
	program = append(program, loadFrom(unix.BPF_H, atType), jumpIf(unix.BPF_JEQ, typeARP, 0, 1),
		pass)
	tcp, udp := t.testPorts(false), t.testPorts(true)
	v4 := slices.Concat([]unix.SockFilter{
		loadFrom(unix.BPF_H, atFragment), jumpIf(unix.BPF_JSET, fragmentBits, 0, 1), pass,
		{Code: loadIPv4HeaderLength, K: ethLen},
		loadFrom(unix.BPF_B, atProto4),
	}, byProtocol(tcp, udp), ifEqual(protoICMP, slices.Concat(loadTypeOfICMP(),
		[]unix.SockFilter{
			jumpIf(unix.BPF_JEQ, icmpUnreachable, 0, 1), pass,
			jumpIf(unix.BPF_JEQ, icmpTimeExceeded, 0, 1), pass,
			jumpIf(unix.BPF_JEQ, icmpParameter, 0, 1), pass, drop,
		})), []unix.SockFilter{drop})
	extensions := []unix.SockFilter{}
	for _, next := range []uint32{extHopByHop, extRouting, extFragment, extDestination} {
		extensions = append(extensions, jumpIf(unix.BPF_JEQ, next, 0, 1), pass)
	}
	v6 := slices.Concat([]unix.SockFilter{
		{Code: loadIndexImmediate, K: atTransport6 - ethLen},
		loadFrom(unix.BPF_B, atProto6),
	}, extensions, byProtocol(tcp, udp), ifEqual(protoICMPv6, slices.Concat(loadTypeOfICMP(),
		[]unix.SockFilter{
			jumpIf(unix.BPF_JGE, icmpv6FirstInformation, 1, 0), pass,
			jumpIf(unix.BPF_JEQ, neighborSolicitation, 0, 1), pass,
			jumpIf(unix.BPF_JEQ, neighborAdvertisement, 0, 1), pass, drop,
		})), []unix.SockFilter{drop})
	program = append(program, loadFrom(unix.BPF_H, atType))
	program = append(program, ifEqual(typeIPv4, v4)...)
	program = append(program, ifEqual(typeIPv6, v6)...)
	return append(program, drop)
}

// ifEqual runs the rest, which ends with a return, if the accumulator has a value.
func ifEqual(value uint32, rest []unix.SockFilter) []unix.SockFilter {
	skip := toVLAN
	skip.K = uint32(len(rest))
	return append([]unix.SockFilter{jumpIf(unix.BPF_JEQ, value, 1, 0), skip}, rest...)
}

// byProtocol looks at the ports of what is of TCP or UDP, by the protocol in the accumulator. The
// index register has the length of the IP header.
func byProtocol(tcp, udp []unix.SockFilter) []unix.SockFilter {
	return slices.Concat(ifEqual(protoTCP, tcp), ifEqual(protoUDP, udp))
}

// loadTypeOfICMP loads the type of a message whose IP header has the length in the index register.
func loadTypeOfICMP() []unix.SockFilter {
	return []unix.SockFilter{{Code: indirect | unix.BPF_B, K: ethLen + offsetTypeOfICMP}}
}

// testPorts look at the destination port.
func (t *portTable) testPorts(udp bool) []unix.SockFilter {
	program := []unix.SockFilter{{Code: indirect | unix.BPF_H, K: ethLen + offsetPort}}
	seen := map[uint16]bool{}
	for _, b := range t.blocks {
		if b.UDP != udp || seen[b.First] {
			continue
		}
		seen[b.First] = true
		program = append(program, jumpIf(unix.BPF_JGE, uint32(b.First), 0, 2),
			jumpIf(unix.BPF_JGT, uint32(b.Last), 1, 0), pass)
	}
	single := t.byPort[protocolIndex(udp)]
	if len(single) > filterPorts {
		return []unix.SockFilter{pass}
	}
	for _, port := range slices.Sorted(maps.Keys(single)) {
		program = append(program, jumpIf(unix.BPF_JEQ, uint32(port), 0, 1), pass)
	}
	return append(program, drop)
}
