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

// hosts returns two on a wire that loses frames: 192.0.2.1 and 2001:db8::1, and those of 2.
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
				netip.MustParsePrefix(fmt.Sprintf("2001:db8::%d/64", i+1))},
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
