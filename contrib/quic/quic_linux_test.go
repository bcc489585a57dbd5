package quic

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

var _ quic.OOBCapablePacketConn = (*Conn)(nil)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tap is a wire that counts the datagrams sent through it.
type tap struct {
	wire.Wire
	all, whole, capable atomic.Int64 // of these, with "don't fragment", and with ECT(0)
	longest             atomic.Int64 // payload
}

// Offloads has the NIC cut up all frames.
func (*tap) Offloads() frame.Offload { return 0 }

func (w *tap) Send(frames []frame.Frame) (int, error) {
	for _, f := range frames {
		ip, class, whole, length := f.Data[14:], byte(0), true, 0
		switch {
		case binary.BigEndian.Uint16(f.Data[12:]) == 0x800 && ip[9] == 17:
			class, whole = ip[1], ip[6] == 0x40
			length = int(binary.BigEndian.Uint16(ip[2:])) - 28
		case binary.BigEndian.Uint16(f.Data[12:]) == 0x86dd && ip[6] == 17:
			class = ip[0]<<4 | ip[1]>>4
			length = int(binary.BigEndian.Uint16(ip[4:])) - 8
		default:
			continue
		}
		w.all.Add(1)
		if whole {
			w.whole.Add(1)
		}
		if class&3 == 2 {
			w.capable.Add(1)
		}
		if old := w.longest.Load(); int64(length) > old {
			w.longest.CompareAndSwap(old, int64(length))
		}
	}
	return w.Wire.Send(frames)
}

// host is a slice of a software NIC.
type host struct {
	*stack.Stack
	tap *tap
}

// hosts returns two on a wire that loses frames: 192.0.2.1 and 2001:db8::1, and those of 2. Each
// has another address of either version, which ends in 11, or 12.
func hosts(t *testing.T, drop float64) (all [2]host) {
	t.Helper()
	a, b := wire.Pair()
	for i, w := range []wire.Wire{wire.WithFaults(a, wire.FaultConfig{Drop: drop, Seed: 7}), b} {
		h := &all[i]
		h.tap = &tap{Wire: w}
		nic, err := simnic.New(simnic.Config{Seed: uint64(i + 1)})
		must(t, err)
		t.Cleanup(func() { nic.Close() })
		must(t, nic.ConnectWire(h.tap))
		h.Stack, err = stack.Open(t.Context(), stack.Config{
			NIC: dv.NIC{Model: dv.Model{Kernel: kernel.Opener(nic),
				Facts: dv.PortFacts{Name: "sim", MAC: nic.MAC(), MTU: nic.MTU()}}},
			Addresses: []netip.Prefix{
				netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", i+1)),
				netip.MustParsePrefix(fmt.Sprintf("2001:db8::%d/64", i+1)),
				netip.MustParsePrefix(fmt.Sprintf("192.0.2.1%d/24", i+1)),
				netip.MustParsePrefix(fmt.Sprintf("2001:db8::1%d/64", i+1))},
			Addressing: stack.AddressOptions{DuplicateDetection: -1},
		})
		must(t, err)
		t.Cleanup(func() { h.Close() })
	}
	return all
}

// listen opens a socket for quic-go, which counts what it reads with ECT(0).
func (h host) listen(t *testing.T, port int) *reader {
	t.Helper()
	pc, err := h.ListenUDP("udp", &net.UDPAddr{Port: port})
	must(t, err)
	c, err := New(pc)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return &reader{Conn: c}
}

// reader counts the marks for ECN that quic-go is told.
type reader struct {
	*Conn
	capable atomic.Int64
}

func (r *reader) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	n, err := r.Conn.ReadBatch(ms, flags)
	for i := range ms[:n] {
		control, _ := unix.ParseSocketControlMessage(ms[i].OOB[:ms[i].NN])
		for _, m := range control {
			tos := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_TOS
			class := m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_TCLASS
			if (tos || class) && m.Data[0]&3 == 2 {
				r.capable.Add(1)
			}
		}
	}
	return n, err
}

// identity makes the configurations of TLS of a server and of a client that trusts it.
func identity(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	must(t, err)
	like := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"slice.test"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Now().AddDate(1, 0, 0), IsCA: true,
		BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(nil, like, like, public, private)
	must(t, err)
	parsed, err := x509.ParseCertificate(der)
	must(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	pair := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}
	return &tls.Config{Certificates: []tls.Certificate{pair}},
		&tls.Config{RootCAs: roots, ServerName: "slice.test"}
}

// TestHTTP3 has a server answer with what a client sends, both on slices, on a good wire and on one
// that loses frames: packets leave many at a time, the NIC cuts them up, none may be fragmented,
// quic-go finds out how long they may be, and reads the marks for ECN that the other side sets.
func TestHTTP3(t *testing.T) {
	for _, drop := range []float64{0, 0.02} {
		for _, at := range []string{"192.0.2.1", "2001:db8::1"} {
			t.Run(fmt.Sprintf("%s, %v %% lost", at, 100*drop), func(t *testing.T) {
				exchange(t, at, drop)
			})
		}
	}
}

func exchange(t *testing.T, at string, drop float64) {
	all := hosts(t, drop)
	secret, trusting := identity(t)
	server, client := all[0].listen(t, 443), all[1].listen(t, 0)
	web := &http3.Server{TLSConfig: http3.ConfigureTLSConfig(secret),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(w, r.Body)
		})}
	served := make(chan error, 1)
	go func() { served <- web.Serve(server) }()
	transport := &quic.Transport{Conn: client}
	rt := &http3.Transport{TLSClientConfig: trusting, Dial: func(ctx context.Context, _ string,
		secret *tls.Config, config *quic.Config) (*quic.Conn, error) {
		return transport.DialEarly(ctx, &net.UDPAddr{IP: net.ParseIP(at), Port: 443}, secret,
			config)
	}}
	sent := make([]byte, 4<<20)
	rand.NewChaCha8([32]byte{1}).Read(sent)
	resp, err := (&http.Client{Transport: rt, Timeout: 5 * time.Minute}).Post(
		"https://slice.test/", "application/octet-stream", bytes.NewReader(sent))
	must(t, err)
	got, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.Equal(got, sent) || resp.Proto != "HTTP/3.0" {
		t.Errorf("%s: %d bytes of %d, %v", resp.Proto, len(got), len(sent), err)
	}
	for i, r := range []*reader{server, client} {
		tap, uso := all[i].tap, all[i].LinkStats().TxUSO
		t.Logf("%d datagrams, %d by %d packets for the NIC to cut up; %d with DF, %d with ECT(0), "+
			"the longest %d bytes; %d read with ECT(0)", tap.all.Load(),
			all[i].Stats().UDPSent, uso, tap.whole.Load(), tap.capable.Load(), tap.longest.Load(),
			r.capable.Load())
		if uso == 0 {
			t.Error("nothing was segmented by the NIC")
		}
		if tap.whole.Load() != tap.all.Load() {
			t.Errorf("%d datagrams may be fragmented", tap.all.Load()-tap.whole.Load())
		}
		if tap.capable.Load() == 0 || r.capable.Load() == 0 {
			t.Error("no marks for ECN")
		}
		if drop == 0 && tap.longest.Load() <= 1280 {
			t.Error("the path's MTU was not looked for")
		}
		if _, err := r.WriteTo(make([]byte, 2000), r.LocalAddr()); !errors.Is(err,
			syscall.EMSGSIZE) {
			t.Errorf("more than the link takes: %v", err)
		}
	}
	must(t, errors.Join(rt.Close(), transport.Close(), web.Close()))
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve: %v", err)
	}
}

// TestOptions sets each option by the descriptor, as a program does, and closes.
func TestOptions(t *testing.T) {
	all := hosts(t, 0)
	pc, err := all[0].ListenUDP("udp4", &net.UDPAddr{Port: 7})
	must(t, err)
	c, err := New(pc)
	must(t, err)
	raw, err := c.SyscallConn()
	must(t, err)
	from, err := all[1].DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7})
	must(t, err)
	defer from.Close()
	must(t, from.SetECN(1))
	set := func(level, name, v int) {
		t.Helper()
		must(t, raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), level, name, v)
		}))
		must(t, err)
	}
	read := func() (control []unix.SocketControlMessage) {
		t.Helper()
		_, err := from.Write([]byte("x"))
		must(t, err)
		must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		var b, oob [256]byte
		_, n, _, _, err := c.ReadMsgUDP(b[:], oob[:])
		must(t, err)
		control, err = unix.ParseSocketControlMessage(oob[:n])
		must(t, err)
		return control
	}
	if m := read(); len(m) != 0 {
		t.Errorf("not asked for: %v", m)
	}
	set(unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
	if m := read(); len(m) != 1 || m[0].Header.Type != unix.IP_TOS || m[0].Data[0] != 1 {
		t.Errorf("IP_RECVTOS: %v", m)
	}
	set(unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	if m := read(); len(m) != 2 || m[0].Header.Type != unix.IP_PKTINFO ||
		!bytes.Equal(m[0].Data[8:], []byte{192, 0, 2, 1}) {
		t.Errorf("IP_PKTINFO: %v", m)
	}
	set(unix.IPPROTO_IP, unix.IP_RECVTOS, 0)
	set(unix.IPPROTO_IP, unix.IP_PKTINFO, 0)
	if m := read(); len(m) != 0 {
		t.Errorf("not asked for any more: %v", m)
	}
	to := &net.UDPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 9}
	_, err = c.WriteTo(make([]byte, 2000), to)
	must(t, err)
	set(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
	if _, err := c.WriteTo(make([]byte, 2000), to); !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("IP_PMTUDISC_PROBE: %v", err)
	}
	set(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_OMIT)
	_, err = c.WriteTo(make([]byte, 2000), to)
	must(t, err)
	for _, use := range []func(func(uintptr) bool) error{raw.Read, raw.Write} {
		if err := use(func(uintptr) bool { return true }); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("read or written by the descriptor: %v", err)
		}
	}
	must(t, c.Close())
	if err := raw.Control(func(uintptr) {}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if err := c.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
}

// control appends a control message to oob, in the form of Linux on 64 bits (cmsg(3)).
func control(oob []byte, level, kind int, data []byte) []byte {
	oob = binary.NativeEndian.AppendUint64(oob, uint64(16+len(data)))
	oob = binary.NativeEndian.AppendUint32(oob, uint32(level))
	oob = binary.NativeEndian.AppendUint32(oob, uint32(kind))
	return append(append(oob, data...), make([]byte, -len(data)&7)...)
}

// version knows the control messages of a version of IP.
type version struct {
	level, class, info, receiveClass, receiveInfo, addressAt int
	server, other, nobody                                    netip.Addr // the server has two
}

var versions = map[string]version{
	"IPv4": {unix.IPPROTO_IP, unix.IP_TOS, unix.IP_PKTINFO, unix.IP_RECVTOS, unix.IP_PKTINFO, 8,
		netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.11"),
		netip.MustParseAddr("192.0.2.99")},
	"IPv6": {unix.IPPROTO_IPV6, unix.IPV6_TCLASS, unix.IPV6_PKTINFO, unix.IPV6_RECVTCLASS,
		unix.IPV6_RECVPKTINFO, 0, netip.MustParseAddr("2001:db8::1"),
		netip.MustParseAddr("2001:db8::11"), netip.MustParseAddr("2001:db8::99")},
}

// from returns a control message that names the address to send from.
func (v *version) from(a netip.Addr) []byte {
	if a.Is4() {
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: a.As4()})
	}
	return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: a.As16()})
}

// ask sets by the descriptor what quic-go sets to be told of classes and addresses.
func (v *version) ask(t *testing.T, c *Conn) {
	t.Helper()
	raw, err := c.SyscallConn()
	must(t, err)
	for _, name := range []int{v.receiveClass, v.receiveInfo} {
		var set error
		must(t, raw.Control(func(fd uintptr) {
			set = unix.SetsockoptInt(int(fd), v.level, name, 1)
		}))
		must(t, set)
	}
}

// wants requires that oob tells that the ECN bits are those, and that the datagram was sent to to.
func (v *version) wants(t *testing.T, oob []byte, ecn byte, to netip.Addr) {
	t.Helper()
	all, err := unix.ParseSocketControlMessage(oob)
	must(t, err)
	class, at := byte(0xff), netip.Addr{}
	for _, m := range all {
		switch int(m.Header.Type) {
		case v.class:
			class = m.Data[0] & 3
		case v.info:
			at, _ = netip.AddrFromSlice(m.Data[v.addressAt:][:to.BitLen()/8])
		}
	}
	if len(all) != 2 || class != ecn || at != to {
		t.Errorf("told of ECN %d and %v by %d messages, want %d and %v", class, at, len(all), ecn,
			to)
	}
}

// TestControl sends what quic-go writes and reads beside packets through the Conn, both ways: ECN
// marks, the address that was sent to and is to be sent from, and sizes of segments, alone and in
// one call; what is cut or wrong has Linux's results.
func TestControl(t *testing.T) {
	for name, v := range versions {
		t.Run(name, func(t *testing.T) {
			all := hosts(t, 0)
			server, client := all[0].listen(t, 443).Conn, all[1].listen(t, 0).Conn
			v.ask(t, server)
			v.ask(t, client)
			to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(v.other, 443))
			must(t, server.SetReadDeadline(time.Now().Add(time.Minute)))
			must(t, client.SetReadDeadline(time.Now().Add(time.Minute)))

			oob := control(nil, v.level, v.class, binary.NativeEndian.AppendUint32(nil, 2))
			oob = control(oob, unix.IPPROTO_UDP, unix.UDP_SEGMENT,
				binary.NativeEndian.AppendUint16(nil, 100))
			n, m, err := client.WriteMsgUDP(make([]byte, 350), oob, to)
			if n != 350 || m != len(oob) || err != nil {
				t.Fatalf("%d bytes and %d of %d beside them written, %v", n, m, len(oob), err)
			}
			var back *net.UDPAddr
			for lengths := []int{100, 100, 100, 50}; len(lengths) > 0; {
				ms := make([]ipv4.Message, 8)
				for i := range ms {
					ms[i] = ipv4.Message{Buffers: [][]byte{make([]byte, 1500)},
						OOB: make([]byte, 128)}
				}
				n, err := server.ReadBatch(ms, 0)
				must(t, err)
				for _, m := range ms[:n] {
					if len(lengths) == 0 || m.N != lengths[0] {
						t.Fatalf("%d bytes, want those of %d", m.N, lengths)
					}
					v.wants(t, m.OOB[:m.NN], 2, v.other)
					back, lengths = m.Addr.(*net.UDPAddr), lengths[1:]
				}
			}

			// the answer leaves from an address that was not asked, with another mark
			oob = control(v.from(v.server), v.level, v.class,
				binary.NativeEndian.AppendUint32(nil, 1))
			_, _, err = server.WriteMsgUDP([]byte("answer"), oob, back)
			must(t, err)
			var b, got [128]byte
			n, m, flags, from, err := client.ReadMsgUDP(b[:], got[:])
			must(t, err)
			if a, _ := netip.AddrFromSlice(from.IP); a.Unmap() != v.server ||
				string(b[:n]) != "answer" || flags != 0 {
				t.Errorf("%q of %v, flags %#x", b[:n], from, flags)
			}
			asked, _ := netip.AddrFromSlice(back.IP)
			v.wants(t, got[:m], 1, asked.Unmap())

			// wrong ones send nothing: what comes next is what is sent next
			before := all[1].Stats().UDPSent
			nobody := syscall.EINVAL // linux net/ipv6/datagram.c, and net/ipv4/route.c
			if v.nobody.Is4() {
				nobody = syscall.ENETUNREACH
			}
			const most = 128 // segments: linux include/linux/udp.h UDP_MAX_SEGMENTS
			for what, wrong := range map[string]struct {
				oob  []byte
				want syscall.Errno
			}{
				"another's address": {v.from(v.nobody), nobody},
				"cut":               {oob[:len(oob)-8], syscall.EINVAL},
				"an unknown kind": {control(nil, unix.IPPROTO_UDP, 99, make([]byte, 4)),
					syscall.EINVAL},
				"too many segments": {control(nil, unix.IPPROTO_UDP, unix.UDP_SEGMENT,
					binary.NativeEndian.AppendUint16(nil, 5)), syscall.EINVAL},
			} {
				_, _, err := client.WriteMsgUDP(make([]byte, 5*most+1), wrong.oob, to)
				if !errors.Is(err, wrong.want) {
					t.Errorf("%s: %v, want %v", what, err, wrong.want)
				}
			}
			if n := all[1].Stats().UDPSent - before; n != 0 {
				t.Errorf("%d sent", n)
			}
			_, err = client.WriteTo([]byte("last"), to)
			must(t, err)
			n, _, flags, _, err = server.ReadMsgUDP(b[:2], got[:4])
			must(t, err)
			if want := unix.MSG_TRUNC | unix.MSG_CTRUNC; string(b[:n]) != "la" || flags != want {
				t.Errorf("%q, flags %#x, want %#x", b[:n], flags, want)
			}
		})
	}
}
