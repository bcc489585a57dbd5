package backing

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// MaxOthers says how many remote ends [Socket.PassAllBut] takes: a filter has 4096 instructions at
// most (BPF_MAXINSNS in linux include/uapi/linux/bpf_common.h).
const MaxOthers = 3000

// PassAllBut lets the kernel also serve who comes by the device, except others: remote ends of
// connections that the other stack goes on with. The socket is not served from here any more:
// whoever has a descriptor of it accepts or reads. It may be called again with others that remain;
// without any, the socket has no filter.
//
// A connection that the kernel accepts inherits the filter (sk_clone in linux net/core/sock.c). It
// is none of others, so that nothing of it is dropped.
func (s *Socket) PassAllBut(others []netip.AddrPort) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return nil
	}
	if len(others) > MaxOthers {
		return fmt.Errorf("%d connections at %s port %s: Linux can be told to leave %d to this "+
			"process at most", len(others), s.protocol, s.at, MaxOthers)
	}
	s.others, s.passing = slices.Clone(others), true
	if len(others) == 0 {
		s.waitForTurn()
		err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
		if errors.Is(err, unix.ENOENT) {
			err = nil
		}
		s.setOwned(s.owned && err != nil)
		return os.NewSyscallError("setsockopt SO_DETACH_FILTER", err)
	}
	return s.attachOthers()
}

// PassNone undoes PassAllBut.
func (s *Socket) PassNone() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.others, s.passing = nil, false
	if s.fd < 0 {
		return nil
	}
	return s.attachServing()
}

// attachOthers puts the filter of PassAllBut in place. Its memory and that of the one before count
// together (net.core.optmem_max), so one that is short comes between if need be. mu is held.
func (s *Socket) attachOthers() error {
	err := s.attachServing()
	if errors.Is(err, unix.ENOMEM) {
		if err = s.attach(passOthers); err == nil {
			err = s.attachServing()
		}
	}
	if errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("%d connections at %s port %s: Linux has no room to leave them to this "+
			"process (raise sysctl net.core.optmem_max): %w", len(s.others), s.protocol, s.at, err)
	}
	return err
}

const (
	netOff = -0x100000 // SKF_NET_OFF (include/uapi/linux/filter.h): from the IP header on
	leaf   = 16        // keys that are compared one after the other
)

// allBut drops what has come in by the device from one of others. It compares hashes: of ends with
// the same address no two have the same one, and of others one in 2^32.
func (d Device) allBut(others []netip.AddrPort, v6 bool) []unix.SockFilter {
	program := append(d.begin(), d.is(1, 0), pass)
	addresses, first := 1, 12 // words of the source address
	if v6 {
		addresses, first = 4, 8
	}
	program = append(program, statement(unix.BPF_LDX|unix.BPF_IMM, hashSeed))
	for i := range addresses {
		at := int32(netOff + first + 4*i)
		program = append(program, statement(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, uint32(at)))
		program = append(program, hashStep()...)
	}
	program = append(program, statement(unix.BPF_LD|unix.BPF_H|unix.BPF_ABS, 0)) // the source port
	program = append(program, hashStep()...)
	var keys []uint32
	for _, o := range others {
		keys = append(keys, hash(o))
	}
	slices.Sort(keys)
	return append(program, search(slices.Compact(keys))...)
}

func statement(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }

const (
	hashSeed   = 0x9e3779b9
	hashFactor = 0x85ebca6b // odd: the step can be undone
	hashShift  = 15
)

// hashStep mixes the word in A with what there is in X, and leaves the result in both.
func hashStep() []unix.SockFilter {
	return []unix.SockFilter{
		statement(unix.BPF_ALU|unix.BPF_ADD|unix.BPF_X, 0),
		statement(unix.BPF_ALU|unix.BPF_MUL|unix.BPF_K, hashFactor),
		statement(unix.BPF_MISC|unix.BPF_TAX, 0),
		statement(unix.BPF_ALU|unix.BPF_RSH|unix.BPF_K, hashShift),
		statement(unix.BPF_ALU|unix.BPF_XOR|unix.BPF_X, 0),
		statement(unix.BPF_MISC|unix.BPF_TAX, 0),
	}
}

// hash returns what the program makes of a remote end.
func hash(end netip.AddrPort) uint32 {
	words := end.Addr().AsSlice()
	words = binary.BigEndian.AppendUint32(words, uint32(end.Port()))
	h := uint32(hashSeed)
	for ; len(words) > 0; words = words[4:] {
		h = (binary.BigEndian.Uint32(words) + h) * hashFactor
		h ^= h >> hashShift
	}
	return h
}

// search drops if A is one of keys, which are in order, and passes else.
func search(keys []uint32) (program []unix.SockFilter) {
	if n := len(keys); n <= leaf {
		for i, k := range keys {
			program = append(program, unix.SockFilter{
				Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: uint8(n - i)})
		}
		return append(program, pass, drop)
	}
	middle := (len(keys) + leaf - 1) / leaf / 2 * leaf
	below, above := search(keys[:middle]), search(keys[middle:])
	program = append(program,
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: keys[middle], Jf: 1},
		statement(unix.BPF_JMP|unix.BPF_JA, uint32(len(below))))
	return append(append(program, below...), above...)
}
