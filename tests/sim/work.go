package sim

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// startWork starts the tasks of all work.
func (w *world) startWork() {
	for i, p := range w.plan.Work {
		if p.Off {
			continue
		}
		j := &job{w: w, plan: p, port: uint16(1000 + i), sessions: map[int]*session{},
			name: fmt.Sprintf("work %d (%v)", i, p.Kind)}
		w.jobs = append(w.jobs, j)
		switch p.Kind {
		case Datagrams:
			if p.inParts() {
				j.segments()
			} else {
				j.datagrams()
			}
		case Web:
			j.web()
		case Script:
			j.script()
		case Names:
			j.names()
		case Lasting:
			j.lasting()
		case Burst:
			j.burst()
		case Flood:
			j.flood()
		case Refused:
			j.refused()
		default:
			j.streams()
		}
	}
}

// job is a piece of work under way.
type job struct {
	w    *world
	plan WorkPlan
	port uint16
	name string

	mu       sync.Mutex
	sessions map[int]*session // by the client's port; guarded by mu
	over     []*session       // whose port another one has; guarded by mu
}

// at is where the job's socket on a host is.
func (j *job) at(host int) netip.AddrPort {
	if j.plan.IPv6 {
		return netip.AddrPortFrom(address6(host), j.port)
	}
	return netip.AddrPortFrom(address(host), j.port)
}

// session is one connection as both its ends see it.
type session struct {
	port            int // the client's
	there, back     *flow
	dialled, served bool // each written by one end, read when all have ended
	born            time.Duration
	begun           time.Duration // when the client began to dial, or as born
	harmed          uint64        // how many frames of the network were lost or late before begun
}

// session returns the connection from a client's port. fresh says that it is a new one.
func (j *job) session(port int, fresh bool) *session {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.sessions[port]
	if s != nil && fresh && s.dialled {
		j.over = append(j.over, s)
		s = nil
	}
	if s == nil {
		s = j.newSession(port)
		j.sessions[port] = s
	}
	return s
}

func (j *job) newSession(port int) *session {
	at := uint64(j.port)<<16 | uint64(port)
	now := j.w.clock.now()
	return &session{port: port, there: &flow{pattern: pattern{j.w.table, at * 7919}},
		back: &flow{pattern: pattern{j.w.table, at*104729 + 1}}, born: now, begun: now,
		harmed: j.w.net.losses()}
}

// servedSession returns the connection from a client's port to its server. The second one of a
// handshake counts for itself: nobody is at its other end, see timeWait. But it is the client's
// where an outage has ended the first before an answer came: the ACK of a SYN cookie counts for two
// minutes, and the client sends again what the first has not acknowledged.
func (j *job) servedSession(port int) *session {
	s := j.session(port, false)
	switch {
	case !s.served || !j.overflows():
	case s.back.got == 0 && (s.there.recvErr != nil || s.back.sendErr != nil):
		s.there.got, s.there.recvErr, s.there.eof = 0, nil, false
		s.back.sent, s.back.sendErr = 0, nil
	default:
		s = j.newSession(port)
	}
	s.served = true
	return s
}

// dialled is the connection c, which t has dialled last.
func (j *job) dialled(t *task, c net.Conn) *session {
	s := j.session(c.LocalAddr().(*net.TCPAddr).Port, true)
	s.dialled, s.begun, s.harmed = true, t.dialled, t.harmed
	return s
}

// packets opens a UDP socket of the job on a host.
func (j *job) packets(host int) (net.PacketConn, error) {
	return j.w.hosts[host].packets(j.bind(host))
}

// exchange has serve be a task on a UDP socket of the server, and calls ask with the client's.
func (j *job) exchange(serve func(*task, net.PacketConn) error,
	ask func(*task, net.PacketConn) error) {
	j.w.spawn(j.name+", client", func(t *task) error {
		t.calls("open sockets")
		server, err := j.packets(j.plan.Server)
		if err != nil {
			return err
		}
		defer server.Close()
		client, err := j.packets(j.plan.Client)
		if err != nil {
			return err
		}
		defer client.Close()
		j.w.spawn(j.name+", server", func(t *task) error { return serve(t, server) })
		return ask(t, client)
	})
}

// check says what is wrong with a connection once all tasks have ended.
func (j *job) check() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := j.over
	for _, s := range j.sessions {
		all = append(all, s)
	}
	for _, s := range all {
		if err := j.checkSession(s); err != nil {
			return fmt.Errorf("%s: %w", j.name, err)
		}
	}
	return nil
}

func (j *job) checkSession(s *session) error {
	broken := j.broken(s.port)
	mayFail := j.plan.Kind == Reset || j.cutOff(s.born) || j.overflows() || broken ||
		!s.served && j.w.handshakeLost(s.begun)
	switch {
	case !s.served && !mayFail:
		return fmt.Errorf("a connection was never accepted")
	case !s.served && j.plan.Kind != Reset:
		return nil // it was cut off before
	}
	if j.moves() || broken || j.cutOff(s.born) { // netstack tells a connection's error once
		s.there.toldOnce(s.back.sendErr)
		s.back.toldOnce(s.there.sendErr)
	}
	if err := s.there.check(mayFail || !s.served); err != nil {
		return fmt.Errorf("client to server: %w", err)
	}
	if err := s.back.check(mayFail || !s.served); err != nil {
		return fmt.Errorf("server to client: %w", err)
	}
	if mayFail {
		return nil
	}
	return j.checkPace(s)
}

// streams runs work of TCP connections: one client, and a server for each connection.
func (j *job) streams() {
	j.serving(func(t *task) error {
		t.sleep(j.plan.Start)
		for n := range j.plan.Count {
			if err := j.connection(t, n); err != nil {
				return fmt.Errorf("connection %d: %w", n, err)
			}
		}
		return j.afterCutOff(t)
	}, j.accept)
}

// serving runs a client once there is a listener that accept serves, and closes the listener when
// the client has ended.
func (j *job) serving(client func(*task) error, accept func(net.Listener)) {
	j.w.spawn(j.name+", client", func(t *task) error {
		t.calls("listen")
		ln, err := j.w.hosts[j.plan.Server].listen(j.bind(j.plan.Server))
		if err != nil {
			return err
		}
		accept(ln)
		err = client(t)
		t.calls("close listener")
		ln.Close()
		return err
	})
}

// accept starts a task that accepts connections until ln is closed.
func (j *job) accept(ln net.Listener) { j.acceptAll(ln, 0, j.serve) }

// acceptAll has connections served, with a pause before each is accepted.
func (j *job) acceptAll(ln net.Listener, pause time.Duration,
	serve func(*task, net.Conn) error) {
	j.w.spawn(j.name+", acceptor", func(t *task) error {
		for n := 0; ; n++ {
			t.sleep(pause)
			t.calls("accept")
			c, err := ln.Accept()
			if err != nil {
				return nil
			}
			j.w.spawn(fmt.Sprintf("%s, server of connection %d", j.name, n),
				func(t *task) error { return serve(t, c) })
		}
	})
}
