package stack_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/stacktest"
)

// find returns the one socket with these words.
func find(t *testing.T, s *stack.Stack, network, state string) stack.Socket {
	t.Helper()
	var found []stack.Socket
	for _, so := range s.Sockets() {
		if so.Network == network && so.State == state {
			found = append(found, so)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d %s sockets in state %s, want 1: %+v", len(found), network, state, s.Sockets())
	}
	return found[0]
}

// has says whether a socket is in a state.
func has(s *stack.Stack, state string) bool {
	return slices.ContainsFunc(s.Sockets(), func(so stack.Socket) bool { return so.State == state })
}

// TestSockets follows a connection from the listener's queue to its end: what is listed is what
// was sent, read and left.
func TestSockets(t *testing.T) {
	server, client := stacktest.Pair(t)
	if all := server.Sockets(); len(all) != 0 {
		t.Fatalf("a new stack has sockets: %+v", all)
	}
	ln, err := server.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	at := stacktest.Used().ServerIP4.Addr()
	out, err := client.Dial("tcp", netip.AddrPortFrom(at, 80).String())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "one connection waits", func() bool {
		return find(t, server, "tcp", "LISTEN").RecvQ == 1
	})
	if l := find(t, server, "tcp", "LISTEN"); l.SendQ == 0 || l.Local.Port() != 80 ||
		!l.Local.Addr().IsUnspecified() || l.TCP != nil {
		t.Errorf("listener with one connection waiting: %+v", l)
	}
	in, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if l := find(t, server, "tcp", "LISTEN"); l.RecvQ != 0 {
		t.Errorf("listener with no connection waiting: %+v", l)
	}
	// fixed: a buffer that grows may take all that is sent
	if err := in.(*stack.TCPConn).SetReadBuffer(256 << 10); err != nil {
		t.Fatal(err)
	}
	const sent, read = 3 << 20, 1 << 20
	done := background(func() error { _, err := out.Write(make([]byte, sent)); return err })
	if _, err := io.CopyN(io.Discard, in, read); err != nil {
		t.Fatal(err)
	}
	eventually(t, "netstack has all bytes", func() bool {
		c, s := find(t, client, "tcp", "ESTAB"), find(t, server, "tcp", "ESTAB")
		return s.TCP.BytesReceived == c.TCP.BytesAcked && s.RecvQ > 0 && c.SendQ > 0
	})
	c, s := find(t, client, "tcp", "ESTAB"), find(t, server, "tcp", "ESTAB")
	if s.Local != c.Remote || s.Remote != c.Local {
		t.Errorf("ends: %v to %v, and %v to %v", s.Local, s.Remote, c.Local, c.Remote)
	}
	if s.TCP.BytesReceived != read+uint64(s.RecvQ) {
		t.Errorf("%d bytes received, %d read and %d left", s.TCP.BytesReceived, read, s.RecvQ)
	}
	if i := c.TCP; i.RTO <= 0 || i.RTT <= 0 || i.MSS < 1000 || i.Cwnd < 1 || i.SegsOut < 10 ||
		i.SegsIn == 0 || i.Congestion == "" {
		t.Errorf("of the sender: %+v", *i)
	}
	if _, err := io.CopyN(io.Discard, in, sent-read); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	eventually(t, "everything is acknowledged", func() bool {
		c := find(t, client, "tcp", "ESTAB")
		return c.SendQ == 0 && c.TCP.BytesAcked == sent && c.TCP.Unacked == 0
	})
	out.Close()
	eventually(t, "the peer's FIN is there", func() bool { return has(server, "CLOSE-WAIT") })
	in.Close()
	eventually(t, "both FINs are acknowledged", func() bool { return has(client, "TIME-WAIT") })
	ln.Close()
}

// TestSocketsClosedByPeer: a connection that waits for Accept is in the listener's Recv-Q also when
// its peer has closed, as in Linux's ss.
func TestSocketsClosedByPeer(t *testing.T) {
	server, client := stacktest.Pair(t)
	ln, err := server.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	out, err := client.Dial("tcp", at(stacktest.Used().ServerIP4.Addr(), ln.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	out.Close()
	eventually(t, "the peer's FIN is there", func() bool { return has(server, "CLOSE-WAIT") })
	if l := find(t, server, "tcp", "LISTEN"); l.RecvQ != 1 {
		t.Errorf("%d connections wait for Accept, want 1", l.RecvQ)
	}
	in, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if l := find(t, server, "tcp", "LISTEN"); l.RecvQ != 0 || !has(server, "CLOSE-WAIT") {
		t.Errorf("%d connections wait for Accept, want 0 and one in CLOSE-WAIT", l.RecvQ)
	}
}

// TestSocketsResetByPeer: a connection that waits for Accept is in the listener's Recv-Q also when
// its peer has reset it, as in Linux's ss (sk_ack_backlog), of one listener of several too.
func TestSocketsResetByPeer(t *testing.T) {
	server, client := stacktest.Pair(t)
	ln, err := server.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	other, err := server.Listen("tcp", ":81")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	waiting := func(port uint16) int {
		for _, so := range server.Sockets() {
			if so.State == "LISTEN" && so.Local.Port() == port {
				return so.RecvQ
			}
		}
		return -1
	}
	for n := range 3 {
		out, err := client.Dial("tcp", at(stacktest.Used().ServerIP4.Addr(), ln.Addr()))
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the connection waits", func() bool { return waiting(80) == n+1 })
		out.(*stack.TCPConn).SetLinger(0)
		out.Close()
	}
	eventually(t, "the RSTs", func() bool { return server.Stats().TCPResetsReceived == 3 })
	for left := 3; left > 0; left-- {
		if n, o := waiting(80), waiting(81); n != left || o != 0 {
			t.Errorf("%d and %d connections wait for Accept, want %d and 0", n, o, left)
		}
		in, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%v, want ECONNRESET", err)
		}
		in.Close()
	}
	if n := waiting(80); n != 0 {
		t.Errorf("%d connections wait for Accept, want none", n)
	}
}

// TestSocketsUDP lists what waits and what was dropped.
func TestSocketsUDP(t *testing.T) {
	server, client := stacktest.Pair(t)
	conn, err := server.ListenUDP("udp", &net.UDPAddr{Port: 53})
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadBuffer(4096)
	to := netip.AddrPortFrom(stacktest.Used().ServerIP4.Addr(), 53)
	peer, err := client.Dial("udp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		fmt.Fprintf(peer, "%0200d", i)
	}
	eventually(t, "100 datagrams wait or are dropped", func() bool {
		so := find(t, server, "udp", "UNCONN")
		return so.RecvQ >= 200 && so.Drops > 0
	})
	if so := find(t, server, "udp", "UNCONN"); so.Local.Port() != 53 || so.Remote.Port() != 0 {
		t.Errorf("%+v", so)
	}
	if so := find(t, client, "udp", "ESTAB"); so.Remote != to {
		t.Errorf("connected to %v, want %v", so.Remote, to)
	}
	conn.Close()
	if all := server.Sockets(); len(all) != 0 {
		t.Errorf("after Close: %+v", all)
	}
}
