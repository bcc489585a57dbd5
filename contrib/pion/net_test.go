package pion

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/pion/ice/v4"
	"github.com/pion/stun/v4"
	"github.com/pion/transport/v5"
	"github.com/pion/turn/v5"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// peer is an agent of ICE, and what it says of its candidates.
type peer struct {
	*ice.Agent
	candidates chan ice.Candidate // closed once there are no more
}

func newPeer(t *testing.T, st *stack.Stack, options ...ice.AgentOption) *peer {
	t.Helper()
	a, err := ice.NewAgentWithOptions(append(options, ice.WithNet(New(st)),
		ice.WithMulticastDNSMode(ice.MulticastDNSModeDisabled))...)
	must(t, err)
	t.Cleanup(func() { a.Close() })
	p := &peer{a, make(chan ice.Candidate, 100)}
	must(t, a.OnCandidate(func(c ice.Candidate) {
		if c == nil {
			close(p.candidates)
			return
		}
		p.candidates <- c
	}))
	must(t, a.GatherCandidates())
	return p
}

// tell gives the other peer this one's candidates, which have to be of the slice's addresses.
func (p *peer) tell(t *testing.T, st *stack.Stack, to *peer) {
	t.Helper()
	n := 0
	for c := range p.candidates {
		parsed, err := ice.UnmarshalCandidate(c.Marshal())
		must(t, err)
		must(t, to.AddRemoteCandidate(parsed))
		a, err := netip.ParseAddr(c.Address())
		must(t, err)
		own := c.Type() == ice.CandidateTypeRelay
		for _, of := range st.Addrs() {
			own = own || of.Addr() == a
		}
		if !own {
			t.Errorf("candidate %s is not the slice's", c.Address())
		}
		n++
	}
	if n == 0 {
		t.Error("no candidates")
	}
}

// connect has two peers find each other, and sends data both ways.
func connect(t *testing.T, server, client *stack.Stack, one, other *peer) {
	t.Helper()
	one.tell(t, server, other)
	other.tell(t, client, one)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	name, secret, err := one.GetLocalUserCredentials()
	must(t, err)
	otherName, otherSecret, err := other.GetLocalUserCredentials()
	must(t, err)
	accepted := make(chan *ice.Conn, 1)
	failed := make(chan error, 1)
	go func() {
		c, err := one.Accept(ctx, otherName, otherSecret)
		accepted <- c
		failed <- err
	}()
	c, err := other.Dial(ctx, name, secret)
	must(t, err)
	d := <-accepted
	must(t, <-failed)
	for i, pair := range [][2]net.Conn{{c, d}, {d, c}} {
		for j := range 100 { // datagrams may be lost: none is on this wire
			b := fmt.Appendf(nil, "%d of %d", j, i)
			_, err := pair[0].Write(b)
			must(t, err)
			must(t, pair[1].SetReadDeadline(time.Now().Add(time.Minute)))
			got := make([]byte, 100)
			n, err := pair[1].Read(got)
			if err != nil || !bytes.Equal(got[:n], b) {
				t.Fatalf("%q arrived of %q: %v", got[:n], b, err)
			}
		}
	}
}

// host has an agent use the addresses that it has.
func host(network ice.NetworkType) []ice.AgentOption {
	return []ice.AgentOption{ice.WithNetworkTypes([]ice.NetworkType{network}),
		ice.WithCandidateTypes([]ice.CandidateType{ice.CandidateTypeHost})}
}

// TestICE connects two agents on slices: by a socket for each candidate, and by one for all that
// sends batches.
func TestICE(t *testing.T) {
	for _, network := range []ice.NetworkType{ice.NetworkTypeUDP4, ice.NetworkTypeUDP6} {
		t.Run(network.String(), func(t *testing.T) {
			server, client := stacktest.Pair(t)
			of := host(network)
			connect(t, server, client, newPeer(t, server, of...), newPeer(t, client, of...))
		})
	}
	t.Run("mux", func(t *testing.T) {
		server, client := stacktest.Pair(t)
		c, err := server.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 3478})
		must(t, err)
		batch := NewBatchConn(c, Batch{})
		mux := ice.NewUDPMuxDefault(ice.UDPMuxParams{UDPConn: batch, Net: New(server)})
		defer mux.Close()
		one := newPeer(t, server, append(host(ice.NetworkTypeUDP4), ice.WithUDPMux(mux))...)
		connect(t, server, client, one, newPeer(t, client, host(ice.NetworkTypeUDP4)...))
		if batch.Lost() != 0 {
			t.Errorf("%d packets lost", batch.Lost())
		}
	})
}

// TestTURN connects two agents by a relay only, which is on a slice, too.
func TestTURN(t *testing.T) {
	server, client := stacktest.Pair(t)
	pc, err := server.ListenPacket("udp4", "192.0.2.1:3478")
	must(t, err)
	const realm, user, password = "slice.test", "user", "secret"
	relay, err := turn.NewServer(turn.ServerConfig{Realm: realm,
		AuthHandler: func(*turn.RequestAttributes) (string, []byte, bool) {
			return user, turn.GenerateAuthKey(user, realm, password), true
		},
		PacketConnConfigs: []turn.PacketConnConfig{{PacketConn: pc,
			RelayAddressGenerator: &turn.RelayAddressGeneratorStatic{
				RelayAddress: net.IPv4(192, 0, 2, 1), Address: "192.0.2.1",
				Net: New(server)}}},
	})
	must(t, err)
	defer relay.Close()
	of := []ice.AgentOption{ice.WithNetworkTypes([]ice.NetworkType{ice.NetworkTypeUDP4}),
		ice.WithCandidateTypes([]ice.CandidateType{ice.CandidateTypeRelay}),
		ice.WithUrls([]*stun.URI{{Scheme: stun.SchemeTypeTURN, Host: "192.0.2.1", Port: 3478,
			Username: user, Password: password, Proto: stun.ProtoTypeUDP}})}
	connect(t, client, client, newPeer(t, client, of...), newPeer(t, client, of...))
	sent := server.Stats().UDPSent
	if sent < 200 {
		t.Errorf("the relay has sent %d datagrams", sent)
	}
}

// TestNet goes through the methods as pion/transport's own test of the host's network does.
func TestNet(t *testing.T) {
	server, client := stacktest.Pair(t)
	n := New(server)
	all, err := n.Interfaces()
	must(t, err)
	addrs, err := all[0].Addrs()
	must(t, err)
	if len(all) != 1 || all[0].MTU != 1500 || all[0].Name != server.Name() ||
		all[0].Flags&net.FlagUp == 0 || addrs[0].String() != "192.0.2.1/24" {
		t.Errorf("interfaces %+v, %v", all[0], addrs)
	}
	byName, err := n.InterfaceByName(server.Name())
	must(t, err)
	byIndex, err := n.InterfaceByIndex(byName.Index)
	must(t, err)
	if byIndex.Name != byName.Name {
		t.Errorf("%+v and %+v", byIndex, byName)
	}
	_, err = n.InterfaceByName("other")
	_, err2 := n.InterfaceByIndex(7)
	if !errors.Is(err, transport.ErrInterfaceNotFound) ||
		!errors.Is(err2, transport.ErrInterfaceNotFound) {
		t.Errorf("%v, %v", err, err2)
	}
	udp, err := n.ResolveUDPAddr("udp", "192.0.2.1:1234")
	must(t, err)
	tcp, err := n.ResolveTCPAddr("tcp", "[2001:db8::1]:1234")
	must(t, err)
	ip, err := n.ResolveIPAddr("ip4", "192.0.2.1")
	must(t, err)
	host, err := n.ResolveUDPAddr("udp4", "localhost:1234")
	must(t, err)
	if udp.String() != "192.0.2.1:1234" || tcp.String() != "[2001:db8::1]:1234" ||
		ip.String() != "192.0.2.1" || host.String() != "127.0.0.1:1234" {
		t.Errorf("resolved %v, %v, %v, %v", udp, tcp, ip, host)
	}
	if _, err := n.ResolveUDPAddr("udp", "192.0.2.1"); err == nil {
		t.Error("resolved without a port")
	}

	pc, err := n.ListenPacket("udp4", "192.0.2.1:0")
	must(t, err)
	defer pc.Close()
	peers := New(client)
	to := pc.LocalAddr().(*net.UDPAddr)
	c, err := peers.DialUDP("udp4", nil, to)
	must(t, err)
	defer c.Close()
	d, err := peers.CreateDialer(&net.Dialer{
		LocalAddr: &net.UDPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 77}}).Dial("udp4", to.String())
	must(t, err)
	defer d.Close()
	for _, c := range []net.Conn{c, d} {
		_, err := c.Write([]byte("hello"))
		must(t, err)
		must(t, pc.SetReadDeadline(time.Now().Add(time.Minute)))
		var b [10]byte
		n, from, err := pc.ReadFrom(b[:])
		must(t, err)
		if string(b[:n]) != "hello" || from.String() != c.LocalAddr().String() {
			t.Errorf("%q of %v, want of %v", b[:n], from, c.LocalAddr())
		}
	}

	l, err := n.ListenTCP("tcp4", &net.TCPAddr{Port: 80})
	must(t, err)
	defer l.Close()
	_, err = n.ListenTCP("tcp4", &net.TCPAddr{Port: 80})
	if err == nil {
		t.Error("listened twice")
	}
	other, err := n.CreateListenConfig(&net.ListenConfig{}).Listen(t.Context(), "tcp", ":81")
	must(t, err)
	defer other.Close()
	for _, at := range []net.Listener{l, other} {
		port := at.Addr().(*net.TCPAddr).Port
		c, err := peers.DialTCP("tcp4", nil, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: port})
		must(t, err)
		a, err := at.Accept()
		must(t, err)
		_, err = c.Write([]byte("hello"))
		must(t, err)
		must(t, c.CloseWrite())
		if b, err := io.ReadAll(a); err != nil || string(b) != "hello" {
			t.Errorf("%q, %v", b, err)
		}
		a.Close()
		c.Close()
	}
	if _, err := peers.DialTCP("tcp4", nil, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1),
		Port: 9}); err == nil {
		t.Error("dialled where nobody listens")
	}
}

// TestBatchConn: packets wait for others until there are enough or the time is over, keep their
// order and their addresses, and what the socket refuses is counted.
func TestBatchConn(t *testing.T) {
	server, client := stacktest.Pair(t)
	c, err := server.ListenUDP("udp4", nil)
	must(t, err)
	b := NewBatchConn(c, Batch{Size: 4, Wait: time.Hour})
	to, err := client.ListenUDP("udp4", &net.UDPAddr{Port: 9})
	must(t, err)
	at := &net.UDPAddr{IP: net.IPv4(192, 0, 2, 2).To4(), Port: 9}
	before := server.Stats().UDPSent
	read := func(want ...string) {
		t.Helper()
		for _, w := range want {
			must(t, to.SetReadDeadline(time.Now().Add(time.Minute)))
			var got [100]byte
			n, err := to.Read(got[:])
			must(t, err)
			if string(got[:n]) != w {
				t.Errorf("read %q, want %q", got[:n], w)
			}
		}
	}
	payload := []byte{0}
	for i := range 6 {
		payload[0] = byte('a' + i)
		_, err := b.WriteTo(payload, at)
		must(t, err)
		if sent := server.Stats().UDPSent - before; i == 2 && sent != 0 {
			t.Errorf("%d sent of three", sent)
		}
	}
	read("a", "b", "c", "d")
	if sent := server.Stats().UDPSent - before; sent != 4 {
		t.Errorf("%d sent of six", sent)
	}
	b.Flush()
	read("e", "f")
	at.Port = 0
	_, err = b.WriteTo(payload, at)
	must(t, err)
	at.Port = 9
	_, err = b.WriteTo([]byte("g"), at)
	must(t, err)
	must(t, b.Close())
	read("g")
	if b.Lost() != 1 {
		t.Errorf("%d lost", b.Lost())
	}
	if _, err := b.WriteTo(payload, at); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}

	c, err = server.ListenUDP("udp4", nil)
	must(t, err)
	b = NewBatchConn(c, Batch{})
	defer b.Close()
	_, err = b.WriteTo([]byte("in time"), at)
	must(t, err)
	read("in time")
	_, err = b.WriteToAddrPort([]byte("hello"), at.AddrPort())
	must(t, err)
	read("hello")
	_, err = to.WriteToUDPAddrPort([]byte("back"), netip.AddrPortFrom(
		netip.MustParseAddr("192.0.2.1"), c.LocalAddr().(*net.UDPAddr).AddrPort().Port()))
	must(t, err)
	var got [10]byte
	must(t, b.SetReadDeadline(time.Now().Add(time.Minute)))
	if n, from, err := b.ReadFromAddrPort(got[:]); err != nil || string(got[:n]) != "back" ||
		from != at.AddrPort() {
		t.Errorf("%q of %v, %v", got[:n], from, err)
	}
}

// TestBatchConnEarlyTimer ends the timer of a new BatchConn while that is being made, as it does
// where another program has the processor just then: Flush found no timer, and the process ended.
func TestBatchConnEarlyTimer(t *testing.T) {
	server, _ := stacktest.Pair(t)
	c, err := server.ListenUDP("udp4", nil)
	must(t, err)
	defer c.Close()
	for range 10_000 {
		NewBatchConn(c, Batch{Size: 1, Wait: time.Nanosecond}).Flush()
	}
}
