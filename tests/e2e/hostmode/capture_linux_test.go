package hostmode

import (
	"encoding/binary"
	"maps"
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
)

// capture looks at the TCP segments with SYN or RST that come to eth0 of a namespace, or that its
// kernel sends there.
type capture struct {
	fd   int
	sent bool
	done sync.WaitGroup

	mu       sync.Mutex
	resets   map[uint16]int     // by port of the sender
	openings map[opening]uint32 // the sequence number of the answer
	twice    int                // SYNs that two TCPs have answered
}

// opening is a SYN that has been answered. A port that a client uses again has another number.
type opening struct {
	to     netip.AddrPort
	from   uint16
	number uint32 // of the SYN, and one
}

// watch begins a capture of what comes.
func watch(t testing.TB, n *lab.Net) *capture { t.Helper(); return watchEither(t, n, false) }

// watchSent begins a capture of what the kernel sends.
func watchSent(t testing.TB, n *lab.Net) *capture { t.Helper(); return watchEither(t, n, true) }

func watchEither(t testing.TB, n *lab.Net, sent bool) *capture {
	t.Helper()
	c := &capture{sent: sent, resets: map[uint16]int{}, openings: map[opening]uint32{}}
	must(t, n.Do(func() (err error) {
		i, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		if c.fd, err = unix.Socket(unix.AF_PACKET,
			unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		const flags = 13 // of TCP, behind an IPv4 header without options, or that of IPv6
		program := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS},
			{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0xf0},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0x60, Jt: 4},
			{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 9},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_TCP, Jf: 7},
			{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 20 + flags},
			{Code: unix.BPF_JMP | unix.BPF_JA, K: 3},
			{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 6},
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_TCP, Jf: 3},
			{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 40 + flags},
			{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: 2 | 4, Jf: 1},
			{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
			{Code: unix.BPF_RET | unix.BPF_K},
		}
		if err := unix.SetsockoptSockFprog(c.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}); err != nil {
			return err
		}
		for option, value := range map[int]int{unix.SO_RCVBUFFORCE: 32 << 20} {
			if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, option, value); err != nil {
				return err
			}
		}
		if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO,
			&unix.Timeval{Usec: 100000}); err != nil {
			return err
		}
		var protocol [2]byte
		binary.BigEndian.PutUint16(protocol[:], unix.ETH_P_ALL) // what is sent is of this one only
		return unix.Bind(c.fd, &unix.SockaddrLinklayer{Ifindex: i.Index,
			Protocol: binary.NativeEndian.Uint16(protocol[:])})
	}))
	stop := make(chan struct{})
	c.done.Go(func() { c.run(stop) })
	t.Cleanup(func() { close(stop); c.done.Wait(); unix.Close(c.fd) })
	return c
}

func (c *capture) run(stop <-chan struct{}) {
	var b [80]byte
	for {
		n, from, err := unix.Recvfrom(c.fd, b[:], 0)
		select {
		case <-stop:
			return
		default:
		}
		ll, ok := from.(*unix.SockaddrLinklayer)
		if err != nil || !ok || !hasTCP(b[:n]) ||
			(ll.Pkttype == unix.PACKET_OUTGOING) != c.sent {
			continue
		}
		c.note(b[:n])
	}
}

// hasTCP says whether a packet that the filter has passed has a header of TCP where note looks.
func hasTCP(ip []byte) bool {
	return len(ip) >= 40 && ip[0] == 0x45 || len(ip) >= 60 && ip[0]>>4 == 6
}

func (c *capture) note(ip []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to, tcp := ip[16:20], ip[20:]
	if ip[0]>>4 == 6 {
		to, tcp = ip[24:40], ip[40:]
	}
	from := binary.BigEndian.Uint16(tcp)
	if tcp[13]&4 != 0 {
		c.resets[from]++
		return
	}
	if tcp[13]&16 == 0 {
		return // a dial
	}
	client, _ := netip.AddrFromSlice(to)
	o := opening{netip.AddrPortFrom(client, binary.BigEndian.Uint16(tcp[2:])), from,
		binary.BigEndian.Uint32(tcp[8:])}
	sequence := binary.BigEndian.Uint32(tcp[4:])
	if was, known := c.openings[o]; known && was != sequence {
		c.twice++
	}
	c.openings[o] = sequence
}

// from is how many resets a port has sent.
func (c *capture) from(port uint16) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resets[port]
}

// answers is how many SYNs a port has answered.
func (c *capture) answers(port uint16) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for o := range c.openings {
		if o.from == port {
			n++
		}
	}
	return n
}

// byPort is how many resets each port has sent.
func (c *capture) byPort() map[uint16]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.resets)
}

// counts are resets from some ports, and SYNs that were answered twice.
func (c *capture) counts(ports ...uint16) (resets, twice int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range ports {
		resets += c.resets[p]
	}
	for p, n := range c.resets {
		if p >= 0xf000 {
			resets += n
		}
	}
	return resets, c.twice
}
