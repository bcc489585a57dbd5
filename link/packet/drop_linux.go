package packet

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

// Sizes of what drops by source, which every frame goes through.
const (
	// maxDrops bounds the prefixes of which the kernel drops.
	maxDrops = 64
	// maxDropKinds bounds the ports and protocols that these are for.
	maxDropKinds = 8
	adRandom     = -0x1000 + 56 // SKF_AD_RANDOM of linux include/uapi/linux/filter.h
)

var _ SourceDropper = (*Port)(nil)

// DropSources implements [SourceDropper]. A port that is closed does nothing.
func (p *Port) DropSources(all []SourceDrop) (n int, err error) {
	program, n := sourceFilter(all, dropSampled(p.cfg.SampleDrops))
	g := &p.groups
	g.mu.Lock()
	defer g.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0, nil
	}
	g.drops = program
	return n, p.attachFilters(g.joined, g.all)
}

// dropKind groups what differs by its source alone.
type dropKind struct {
	is4        bool
	proto      uint8
	port, mask uint16
}

// sourceFilter returns the beginning of a classic BPF program, which drops the first n of all and
// goes on with the rest of the program for other frames. Every test is followed by a verdict of its
// own, so that no jump is long: one that drops, or goes on.
func sourceFilter(all []SourceDrop, verdict []unix.SockFilter) (program []unix.SockFilter, n int) {
	kinds := map[dropKind][]SourceDrop{}
	var order []dropKind
	for _, d := range all {
		k := dropKind{d.From.Addr().Is4(), d.Proto, d.Port, d.Mask}
		if kinds[k] == nil {
			if len(order) == maxDropKinds {
				break
			}
			order = append(order, k)
		}
		if n == maxDrops {
			break
		}
		kinds[k] = append(kinds[k], d)
		n++
	}
	for _, is4 := range []bool{true, false} {
		var body []unix.SockFilter
		for _, k := range order {
			if k.is4 == is4 {
				body = append(body, k.testSources(kinds[k], verdict)...)
			}
		}
		if len(body) > 0 {
			program = append(program, inFamily(is4, body)...)
		}
	}
	return program, n
}

// inFamily runs the body for packets of a family that have ports, with the length of the IP header
// in the index register.
func inFamily(is4 bool, body []unix.SockFilter) []unix.SockFilter {
	if !is4 {
		body = append([]unix.SockFilter{{Code: loadIndexImmediate, K: ipv6Len}}, body...)
		return append([]unix.SockFilter{loadFrom(unix.BPF_H, atType)},
			onlyIf(unix.BPF_JEQ, typeIPv6, body)...)
	}
	const laterFragment = 0x1fff
	body = append([]unix.SockFilter{{Code: loadIPv4HeaderLength, K: ethLen}}, body...)
	body = append([]unix.SockFilter{loadFrom(unix.BPF_H, atFragment),
		jumpIf(unix.BPF_JSET, laterFragment, 0, 1), jumpOver(len(body))}, body...)
	return append([]unix.SockFilter{loadFrom(unix.BPF_H, atType)},
		onlyIf(unix.BPF_JEQ, typeIPv4, body)...)
}

// onlyIf runs the body if a test of the accumulator holds.
func onlyIf(op uint16, k uint32, body []unix.SockFilter) []unix.SockFilter {
	return append([]unix.SockFilter{jumpIf(op, k, 1, 0), jumpOver(len(body))}, body...)
}

// jumpOver leaves out n instructions.
func jumpOver(n int) unix.SockFilter {
	jump := toVLAN
	jump.K = uint32(n)
	return jump
}

// testSources makes packets of a kind end with the verdict, by their sources.
func (k dropKind) testSources(all []SourceDrop, verdict []unix.SockFilter) []unix.SockFilter {
	at := int32(atProto4)
	if !k.is4 {
		at = atProto6
	}
	var sources []unix.SockFilter
	for _, d := range all {
		sources = append(sources, dropFrom(d, verdict)...)
	}
	ports := append([]unix.SockFilter{{Code: indirect | unix.BPF_H, K: ethLen + offsetPort},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: uint32(k.mask)}},
		onlyIf(unix.BPF_JEQ, uint32(k.port), sources)...)
	return append([]unix.SockFilter{loadFrom(unix.BPF_B, at)},
		onlyIf(unix.BPF_JEQ, uint32(k.proto), ports)...)
}

// dropSampled returns a verdict that drops, and lets one frame in so many go on; 0: none.
func dropSampled(oneIn uint32) []unix.SockFilter {
	if oneIn == 0 {
		return []unix.SockFilter{drop}
	}
	return []unix.SockFilter{loadFrom(unix.BPF_W, adRandom),
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: oneIn - 1},
		jumpIf(unix.BPF_JEQ, 0, 1, 0), drop}
}

// dropFrom makes what comes from a prefix end with the verdict. It looks at the words of the
// address that the prefix covers.
func dropFrom(d SourceDrop, verdict []unix.SockFilter) (program []unix.SockFilter) {
	at, bytes := int32(ethLen+12), d.From.Addr().AsSlice()
	if d.From.Addr().Is6() {
		at = ethLen + 8
	}
	program = slices.Clone(verdict)
	words := (d.From.Bits() + 31) / 32
	for i := words - 1; i >= 0; i-- {
		k, bits := binary.BigEndian.Uint32(bytes[4*i:]), min(d.From.Bits()-32*i, 32)
		test := []unix.SockFilter{loadFrom(unix.BPF_W, at+int32(4*i))}
		if bits < 32 {
			test = append(test, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K,
				K: ^uint32(0) << (32 - bits)})
		}
		program = append(append(test, jumpIf(unix.BPF_JEQ, k, 0, uint8(len(program)))), program...)
	}
	return program
}
