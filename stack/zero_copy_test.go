package stack_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack"
)

// linesOf counts lines of a log that say that packets are copied.
type linesOf struct{ copied atomic.Int32 }

func (l *linesOf) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("packets are copied")) {
		l.copied.Add(1)
	}
	return len(line), nil
}

// zeroCopyHost is a stack on a software card whose kernel locks so much memory.
func zeroCopyHost(t *testing.T, w wire.Wire, address string, memlock int64,
	log *slog.Logger) *stack.Stack {
	t.Helper()
	nic, err := simnic.New(simnic.Config{MAC: net.HardwareAddr{2, 0, 0, 0, 1, 1}})
	if err != nil {
		t.Fatal(err)
	}
	if err := nic.ConnectWire(w); err != nil {
		t.Fatal(err)
	}
	s, err := stack.Open(context.Background(), stack.Config{
		Addressing: stack.AddressOptions{DuplicateDetection: -1},
		Addresses:  []netip.Prefix{netip.MustParsePrefix(address)},
		Logger:     log,
		NIC: dv.NIC{Model: dv.Model{
			Kernel: kernel.New(nic, kernel.Config{Memlock: memlock}).OpenNode,
			Facts: dv.PortFacts{Name: "sim", Netdev: "sim0", MAC: nic.MAC(),
				MTU: nic.MTU()}}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		_ = nic.Close()
	})
	return s
}

// TestZeroCopySend: of two stacks of a process one sends without copying and one, which may lock no
// more memory, copies, which its health and a line of its log say. What they send arrives.
func TestZeroCopySend(t *testing.T) {
	if err := stack.ZeroCopySend(); err != nil {
		t.Fatal(err)
	}
	near, far := wire.Pair()
	var texts [2]linesOf
	logs := [2]*slog.Logger{slog.New(slog.NewTextHandler(&texts[0], nil)),
		slog.New(slog.NewTextHandler(&texts[1], nil))}
	free := zeroCopyHost(t, near, "192.0.2.1/24", 0, logs[0])
	short := zeroCopyHost(t, far, "192.0.2.2/24", 8<<20, logs[1])
	if m := stack.SendMemory(); m.Bytes != 16<<20 || m.Err != nil {
		t.Errorf("%+v", m)
	}
	for _, tt := range []struct {
		from, to *stack.Stack
		address  string
		inPlace  bool
		log      *linesOf
	}{{free, short, "192.0.2.2:80", true, &texts[0]}, {short, free, "192.0.2.1:80", false,
		&texts[1]}} {
		send(t, tt.from, tt.to, tt.address)
		st := tt.from.Device().Stats().Tx
		sent := uint64(0)
		for _, q := range st {
			sent += q.InPlace
		}
		if bytes, err := tt.from.Device().SendMemory(); (sent > 0) != tt.inPlace ||
			(err == nil) != tt.inPlace || (bytes > 0) != tt.inPlace {
			t.Errorf("to %s: %d packets in place, from %d bytes, %v", tt.address, sent, bytes, err)
		}
		tx := tt.from.Health()[0]
		if tx.Reporter != "tx" || tx.State != stack.Healthy || (tx.Notice == nil) != tt.inPlace {
			t.Errorf("to %s: %+v", tt.address, tx)
		}
		if n := tt.log.copied.Load(); (n == 0) != tt.inPlace || n > 1 {
			t.Errorf("to %s: %d lines in the log", tt.address, n)
		}
	}
}

// send writes 8 MiB by one connection.
func send(t *testing.T, from, to *stack.Stack, address string) {
	t.Helper()
	ln, err := to.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	conn, err := from.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	data := bytes.Repeat([]byte("0123456789abcdefg"), 8<<20/17)
	go func() {
		_, _ = conn.Write(data)
		_ = conn.(*stack.TCPConn).CloseWrite()
	}()
	peer, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	if got, err := io.ReadAll(peer); err != nil || !bytes.Equal(got, data) {
		t.Errorf("to %s: %d of %d bytes, or others: %v", address, len(got), len(data), err)
	}
}
