package stack

import (
	"bytes"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/rdma-netstack/rdma-netstack/stack/internal/addrconf"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/env"
	"github.com/rdma-netstack/rdma-netstack/stack/internal/neighbours"
)

// TestMissingFields: a version of gVisor in which fields are gone, or are of other kinds, makes
// zeros and one line, not a panic.
func TestMissingFields(t *testing.T) {
	type queue struct{ SndBufUsed string }
	type sender struct {
		MaxPayloadSize int
		SndUna         struct{ v uint32 }
	}
	type endpoint struct {
		SendTSOk, SACKPermitted int
		snd                     *sender
		sndQueueInfo            queue
	}
	_, _ = endpoint{}.snd, endpoint{}.sndQueueInfo // read by reflection only
	s := &Stack{}
	cfg := Config{}.withDefaults()
	g, err := newNetstack(cfg, addrconf.New(&env.Env{Clock: cfg.Clock}, nil, addrconf.Config{}),
		neighbours.NewTable(cfg.Clock, cfg.Logger, cfg.Name), new(linkMTU), newICMPErrors(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Destroy()
	made, terr := g.NewEndpoint(tcp.ProtocolNumber, ipv4Protocol, new(waiter.Queue))
	if terr != nil {
		t.Fatal(terr)
	}
	defer made.Close()
	ep := made.(*tcp.Endpoint)
	for _, c := range []struct {
		of   reflect.Type
		want string
	}{
		{reflect.TypeFor[tcp.Endpoint](), ""},
		{reflect.TypeFor[endpoint](), "endpoint.SendTSOk endpoint.SACKPermitted endpoint.rcv " +
			"sender.SndWndScale sender.Outstanding sender.Ssthresh sender.SndCwnd " +
			"sender.minRTO sender.cc sender.finSent sender.SndUna sender.SndNxt sender.SndWnd " +
			"RcvWndScale queue.SndBufUsed endpoint.scoreboard ranges length " +
			"sender.FastRecovery HighRxt Active Last sender.state sender.writeList writeList " +
			"head pkt sequenceNumber xmitCount lost next endpoint.segmentQueue mu list"},
		{reflect.TypeFor[struct{}](), ".SendTSOk .SACKPermitted .snd .rcv .sndQueueInfo " +
			"SndWndScale MaxPayloadSize Outstanding Ssthresh SndCwnd minRTO cc finSent SndUna " +
			"SndNxt SndWnd RcvWndScale SndBufUsed .scoreboard ranges length " +
			"FastRecovery HighRxt Active Last state writeList writeList head pkt sequenceNumber " +
			"xmitCount lost next .segmentQueue mu list"},
		{reflect.TypeFor[int](), "SendTSOk SACKPermitted snd rcv sndQueueInfo " +
			"SndWndScale MaxPayloadSize Outstanding Ssthresh SndCwnd minRTO cc finSent SndUna " +
			"SndNxt SndWnd RcvWndScale SndBufUsed scoreboard ranges length " +
			"FastRecovery HighRxt Active Last state writeList writeList head pkt sequenceNumber " +
			"xmitCount lost next segmentQueue mu list"},
	} {
		s.fields = findTCPFields(c.of)
		if got := strings.Join(s.fields.missing, " "); got != c.want {
			t.Errorf("%v: missing are %q, want %q", c.of, got, c.want)
		}
		var log bytes.Buffer
		s.fields.report(slog.New(slog.NewTextHandler(&log, nil)))
		if lines := strings.Count(log.String(), "\n"); lines != min(1, len(c.want)) {
			t.Errorf("%v: %d lines: %s", c.of, lines, &log)
		}
		if c.want == "" || c.of == reflect.TypeFor[endpoint]() { // the places are of another type
			continue
		}
		var so Socket
		var info TCPInfo
		if n := s.fields.read(ep, &so, &info); n != 0 || info != (TCPInfo{}) ||
			s.fields.finAcked(ep) {
			t.Errorf("%v: %d, %+v", c.of, n, info)
		}
	}
}
