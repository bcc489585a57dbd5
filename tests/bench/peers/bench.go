package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// bench is one load and the quantities recorded for it.
type bench struct {
	name  string
	quick bool // also in quick runs
	extra bool // also for peers that are extra
	apart bool // also for extra peers whose clients have a processor of their own, or small frames
	once  bool // in the first round only
	few   bool // in the first rounds only, as extra peers
	for_  func(*peer) bool
	run   func(*sample) error
}

// sample is one run of one bench on one arena.
type sample struct {
	*arena
	ctx   context.Context
	files files
	scale float64
	keep  string  // prefix of profiles; empty: none are kept
	out   metrics // by name of the catalogue
	more  metrics // counters of the server's host
	noise float64 // processors in use by others
	wire  frames  // that crossed the cable
}

func kernelClient(p *peer) bool { return !p.memory() && !p.wan() }
func onTAP(p *peer) bool {
	return p.Plumbing == plumbTAP || p.Plumbing == plumbRelay || p.Plumbing == plumbMTU
}
func inMemory(p *peer) bool { return p.memory() }
func anyPeer(p *peer) bool  { return !p.wan() }

// servedBy are the peers on which whole services are measured: the kernel, the best of gVisor's
// links, and ours.
func servedBy(p *peer) bool { return servicePeers[p.Name] }

var servicePeers = map[string]bool{"kernel/veth": true, "fd-gso-inline": true, "ours/veth": true,
	"packet": true, "kernel/tap": true, "fd-tap": true, "ours/tap": true}

// forwarding reports whether an SFU is measured on a peer.
func forwarding(p *peer) bool { return forwardingPeers[p.Name] }

var forwardingPeers = map[string]bool{"kernel/tap": true, "ours/tap": true,
	"kernel/tap-apart": true, "ours/tap-apart": true}

// overQUIC selects those on which HTTP/3 is measured.
func overQUIC(p *peer) bool { return servedBy(p) || forwarding(p) }

// batching selects those of overQUIC whose UDP sockets have batches of their own.
func batching(p *peer) bool { return overQUIC(p) && p.ours() }

// segmenting selects those whose UDP sockets take several datagrams in a call.
func segmenting(p *peer) bool {
	return kernelClient(p) && (p.ours() || p.End.Stack == stackKernel)
}

// takes reports whether the load is run on a peer in a round.
func (b *bench) takes(p *peer, round int) bool {
	early := round < extraRounds
	return b.for_(p) && (!b.few || early) &&
		(!p.Extra || early && (b.extra || b.apart && (p.Apart || p.Plumbing == plumbMTU)))
}

// benches are all loads, in the order they run in each round.
func benches() []bench {
	return append([]bench{
		{name: "http", quick: true, extra: true, for_: kernelClient, run: (*sample).http},
		{name: "conns", apart: true, for_: kernelClient, run: (*sample).conns},
		{name: "dns", quick: true, extra: true, for_: kernelClient, run: (*sample).dns},
		{name: "mem-http", quick: true, extra: true, for_: inMemory, run: (*sample).memHTTP},
		{name: "up1", quick: true, extra: true, for_: anyPeer, run: bulk("up", 1)},
		{name: "down1", quick: true, extra: true, for_: kernelClient, run: bulk("down", 1)},
		{name: "up8", apart: true, for_: kernelClient, run: bulk("up", 8)},
		{name: "down8", apart: true, for_: kernelClient, run: bulk("down", 8)},
		{name: "up64", few: true, apart: true, for_: kernelClient, run: bulk("up", 64)},
		{name: "down64", few: true, apart: true, for_: kernelClient, run: bulk("down", 64)},
		{name: "up16", quick: true, extra: true, for_: inMemory, run: bulk("up", 16)},
		{name: "udp-rx", extra: true, for_: anyPeer, run: (*sample).udpUp},
		{name: "udp-tx", for_: anyPeer, run: (*sample).udpDown},
		{name: "udp-segments", apart: true, for_: segmenting, run: (*sample).udpSegments},
		{name: "udp-echo", extra: true, for_: inMemory, run: (*sample).udpEcho},
		{name: "paced", quick: true, apart: true, for_: anyPeer, run: (*sample).paced},
		{name: "rtt", quick: true, extra: true, for_: anyPeer, run: (*sample).rtt},
		{name: "ping", for_: kernelClient, run: (*sample).ping},
		{name: "idle", extra: true, once: true, for_: anyPeer, run: (*sample).idle},
		{name: "memory", once: true, for_: kernelClient, run: (*sample).memory},
	}, slices.Concat(writeBenches(), serviceBenches(), wanBenches())...)
}

// during runs a load between the server's begin and end, and records who used the machine
// meanwhile. It returns what the server used and what the client's side used, in seconds of CPU.
func (s *sample) during(load func() error) (server *usage, client float64, err error) {
	procs := []*proc{s.server}
	for _, p := range []*proc{s.loads, s.relay} {
		if p != nil && p != s.server {
			procs = append(procs, p)
		}
	}
	for _, p := range procs {
		if _, err := p.ask(request{Op: "begin"}); err != nil {
			return nil, 0, err
		}
	}
	watch, before := startWatch(), s.frames()
	err = load()
	s.wire = s.frames().since(before)
	known := 0.0
	for i, p := range procs {
		q := request{Op: "end"}
		if i == 0 && s.keep != "" {
			q.Profile = s.keep + ".pprof"
		}
		r, e := p.ask(q)
		if err = errors.Join(err, e); e != nil {
			continue
		}
		known += r.Usage.CPU
		switch {
		case p == s.server:
			server = r.Usage
		case server == nil: // it failed, and so does the sample
		case p == s.relay:
			server.CPU += r.Usage.CPU // a cable that is a process, as ours is
			server.Model += r.Usage.Model
		default:
			client += r.Usage.CPU
		}
		if i == 0 {
			// before the others' profiles are stopped, which takes time
			s.noise = watch.others(known)
		}
	}
	if err == nil && server == nil {
		err = errors.New("no usage")
	}
	if err == nil {
		s.more = server.More
	}
	return server, client + watch.ours(), err
}

// costs records the server's CPU per unit of work: with the software NIC, without it, and with the
// client's added.
func (s *sample) costs(name string, u *usage, client, work, unit float64) {
	if work == 0 {
		return
	}
	s.out[name+" cpu"] = u.CPU / work * unit
	s.out[name+" own"] = (u.CPU - u.Model) / work * unit
	if !s.memory_() {
		s.out[name+" both"] = (u.CPU + client) / work * unit
	}
}

func (s *sample) memory_() bool { return s.arena.peer.memory() }

// seconds scales a duration; whole rounds up to what wrk and dnsperf take.
func (s *sample) seconds(n float64) float64 { return n * s.scale }
func (s *sample) whole(n float64) int       { return max(1, int(n*s.scale+0.5)) }

const micro = 1e6

// profileName is the name of a kept profile without its extension.
func profileName(peer, bench string, round int) string {
	return fmt.Sprintf("%s-%s-%d", strings.ReplaceAll(peer, "/", "_"), bench, round)
}
