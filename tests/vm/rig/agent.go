package rig

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// HelloID is the ID of the reply that the guest sends without a request when it is ready.
const HelloID = -1

// Request is one line from the host to the guest.
type Request struct {
	ID int
	// "run", "start", "stop", "signal", "type", "wait", "load", "unload", "read", "write", "glob",
	// "dmesg", "ping", "clock", "serve", "fetch", "upload"
	Op      string
	Argv    []string      // run, start: program and arguments; fetch: URL; write: text
	Env     []string      // run, start: more environment, NAME=VALUE
	Path    string        // read, write: file; glob: pattern; load: set, "" for the drivers
	Job     int           // stop, signal, type, wait: the ID of the start
	Signal  int           // stop, signal: number
	Input   string        // start: what to type on a terminal, "" for no terminal; type: what
	Timeout time.Duration // of the work requested: default 30 s
}

// Reply is the guest's answer: a program's output and exit code. Code is -1 when the program could
// not be run.
type Reply struct {
	ID     int
	Code   int
	Output string
	Error  string
}

// Agent is the host's end of the second serial port. Its methods may be called concurrently.
type Agent struct {
	w  io.Writer
	mu sync.Mutex // guards the fields below and writes to w

	next    int
	waiting map[int]chan Reply
	dead    error
	ready   chan struct{} // closed when the guest says hello, or has ended
	hello   sync.Once
	hungUp  chan struct{} // closed when the line is
}

// NewAgent speaks to the guest over rw, as its only user, until fail is called.
func NewAgent(rw io.ReadWriter) *Agent {
	a := &Agent{w: rw, waiting: map[int]chan Reply{}, ready: make(chan struct{}),
		hungUp: make(chan struct{})}
	go a.read(rw)
	return a
}

// read passes replies to the waiting requests. Lines that are no reply (the UART's noise at boot)
// are skipped.
func (a *Agent) read(r io.Reader) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		var rep Reply
		if json.Unmarshal(s.Bytes(), &rep) != nil || rep.ID == 0 {
			continue
		}
		if rep.ID == HelloID {
			a.hello.Do(func() { close(a.ready) })
			continue
		}
		a.mu.Lock()
		if c := a.waiting[rep.ID]; c != nil {
			c <- rep
			delete(a.waiting, rep.ID)
		}
		a.mu.Unlock()
	}
	close(a.hungUp)
}

// Err is why requests are no longer answered, nil while they are.
func (a *Agent) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.dead
}

// fail ends all pending and future calls with err; later failures follow from the first.
func (a *Agent) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dead != nil {
		return
	}
	a.dead = err
	a.hello.Do(func() { close(a.ready) })
	for id, c := range a.waiting {
		close(c)
		delete(a.waiting, id)
	}
}

// Do sends a request and waits for its answer, at most for the request's timeout plus ten seconds.
func (a *Agent) Do(q Request) (Reply, error) {
	if q.Timeout == 0 {
		q.Timeout = 30 * time.Second
	}
	c, err := a.send(&q)
	if err != nil {
		return Reply{}, err
	}
	select {
	case rep, ok := <-c:
		if !ok {
			return Reply{Code: -1}, a.Err()
		}
		if rep.Error != "" {
			return rep, fmt.Errorf("guest: %s %v: %s", q.Op, q.Argv, rep.Error)
		}
		return rep, nil
	case <-time.After(q.Timeout + 10*time.Second):
		return Reply{}, fmt.Errorf("guest: %s %v: no answer in %v", q.Op,
			q.Argv, q.Timeout+10*time.Second)
	}
}

func (a *Agent) send(q *Request) (chan Reply, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.dead != nil {
		return nil, a.dead
	}
	a.next++
	q.ID = a.next
	line, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	c := make(chan Reply, 1)
	a.waiting[q.ID] = c
	_, err = a.w.Write(append(line, '\n'))
	return c, err
}
