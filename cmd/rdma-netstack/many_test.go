package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/stack"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

const (
	manyPage    = "192.0.2.10:80"
	manyAsking  = 32 // connections that have a request under way at the same time
	manyRequest = "GET /-/healthz HTTP/1.1\r\nHost: 192.0.2.10\r\n\r\n"
)

// asked is a connection of a client, with what it has counted itself.
type asked struct {
	conn  net.Conn
	local netip.AddrPort
	r     *bufio.Reader
	read  uint64 // bytes; whoever asks
	// Bytes of requests before each is written, and after each answer, of this connection.
	begun, done uint64
}

// clients are on the kernel behind the cable, each with a connection that stays.
type clients struct {
	all         []*asked
	begun, done atomic.Uint64 // bytes of requests, of all
	phase       atomic.Int32  // in which answers are timed
	mu          sync.Mutex
	times       map[int32][]time.Duration
}

func newClients(t *testing.T, n int, from *lab.Net) *clients {
	c := &clients{all: make([]*asked, n), times: map[int32][]time.Duration{}}
	err := inParts(c.all, func(part []*asked) error {
		for i := range part {
			conn, err := from.DialContext(t.Context(), "tcp", manyPage)
			if err != nil {
				return err
			}
			t.Cleanup(func() { conn.Close() })
			part[i] = &asked{conn: conn,
				local: netip.MustParseAddrPort(conn.LocalAddr().String())}
			part[i].r = bufio.NewReader(part[i])
			if err := c.ask(part[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// inParts calls do with manyAsking parts of all at the same time.
func inParts(all []*asked, do func(part []*asked) error) error {
	var results []chan error
	for part := range slices.Chunk(all, (len(all)+manyAsking-1)/manyAsking) {
		result := make(chan error, 1)
		results = append(results, result)
		go func() { result <- do(part) }()
	}
	var errs []error
	for _, r := range results {
		errs = append(errs, <-r)
	}
	return errors.Join(errs...)
}

// Read counts what comes.
func (a *asked) Read(p []byte) (int, error) {
	n, err := a.conn.Read(p)
	a.read += uint64(n)
	return n, err
}

// ask sends a request and reads the answer.
func (c *clients) ask(a *asked) error {
	a.begun += uint64(len(manyRequest))
	c.begun.Add(uint64(len(manyRequest)))
	if _, err := io.WriteString(a.conn, manyRequest); err != nil {
		return err
	}
	resp, err := http.ReadResponse(a.r, nil)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %w", resp.Status, err)
	}
	a.done += uint64(len(manyRequest))
	c.done.Add(uint64(len(manyRequest)))
	return nil
}

// askAll has every connection ask, one after the other on each of several goroutines, until stop
// is closed.
func (c *clients) askAll(stop chan struct{}) error {
	return inParts(c.all, func(part []*asked) error {
		times := map[int32][]time.Duration{}
		defer c.add(times)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return nil
			default:
			}
			phase, began := c.phase.Load(), time.Now()
			if err := c.ask(part[i%len(part)]); err != nil {
				return err
			}
			times[phase] = append(times[phase], time.Since(began))
		}
	})
}

func (c *clients) add(times map[int32][]time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for phase, all := range times {
		c.times[phase] = append(c.times[phase], all...)
	}
}

// p99 is the time in which 99 of 100 answers of some phases came, at least 1 ns.
func (c *clients) p99(phases ...int32) time.Duration {
	all := []time.Duration{1}
	for _, p := range phases {
		all = append(all, c.times[p]...)
	}
	slices.Sort(all)
	return all[len(all)*99/100]
}

// watched is a server with many connections, which is looked at by the commands.
type watched struct {
	*script
	clients *clients
}

func newWatched(t *testing.T, connections int) (*watched, *lab.Net) {
	server, client := vethLab(t)
	w := &watched{script: &script{t: t, dir: t.TempDir(), net: server}}
	program := w.program(strings.Fields("serve http --device veth0 --address 192.0.2.10/24 " +
		"--queues 2 --max-conns 20000"))
	w.background = exec.Command(program.Path, program.Args[1:]...) // has no limit of time
	w.background.Args[0], w.background.Env = program.Args[0], program.Env
	w.background.Dir = program.Dir
	if err := w.launchBackground(); err != nil {
		t.Fatal(err)
	}
	if err := w.out.await("try: "); err != nil {
		t.Fatal(err, w.errs)
	}
	w.clients = newClients(t, connections, client)
	return w, client
}

// print runs a command and returns what it prints.
func (w *watched) print(args ...string) string {
	w.t.Helper()
	if err := w.run(w.program(append(args, "--json"))); err != nil || w.code != 0 {
		w.t.Fatalf("%q: %v, code %d, %s", args, err, w.code, w.stderr)
	}
	return w.stdout
}

// decode decodes what a command has printed.
func (w *watched) decode(text string, to any) {
	w.t.Helper()
	if err := json.Unmarshal([]byte(text), to); err != nil {
		w.t.Fatal(err)
	}
}

// looked is what the commands have printed, and bytes of requests when ss -i was started and when
// it had ended. It is decoded later: that would take time of the clients' process.
type looked struct {
	before, sockets, after string
	least, most            uint64
	took                   time.Duration
}

// look has ss -i, stats and capture right after one another.
func (w *watched) look() (l looked) {
	w.t.Helper()
	began := time.Now()
	l.before = w.print("status", "stats", "--all")
	l.least = w.clients.done.Load()
	l.sockets = w.print("ss", "-tin")
	l.most = w.clients.begun.Load()
	file := filepath.Join(w.dir, "looked.pcapng")
	err := w.run(w.program([]string{"capture", "-w", file, "-c", "200", "-s", "80", "tcp", "port",
		"80"}))
	if err != nil || w.code != 0 || !strings.Contains(w.stderr, "200 frames") {
		w.t.Errorf("capture: %v, code %d, %s", err, w.code, w.stderr)
	}
	l.after = w.print("status", "stats", "--all")
	l.took = time.Since(began)
	return l
}

// agrees compares what the commands say with what the clients have counted before and after.
func (w *watched) agrees(l looked) {
	w.t.Helper()
	var before, after admin.Counters
	var sockets []stack.Socket
	w.decode(l.before, &before)
	w.decode(l.sockets, &sockets)
	w.decode(l.after, &after)
	if sum, n := received(sockets); sum < l.least || sum > l.most || n != len(w.clients.all) {
		w.t.Errorf("ss lists %d connections that have received %d bytes; the clients have %d, "+
			"which have sent %d to %d", n, sum, len(w.clients.all), l.least, l.most)
	}
	if n := after.Gauges["tcp_current_established"]; n != uint64(len(w.clients.all)) {
		w.t.Errorf("stats has %d connections, the clients %d", n, len(w.clients.all))
	}
	for name, n := range before.Counters {
		if after.Counters[name] < n {
			w.t.Errorf("%s fell from %d to %d", name, n, after.Counters[name])
		}
	}
}

// received adds up the connections that are established.
func received(sockets []stack.Socket) (sum uint64, n int) {
	for _, s := range sockets {
		if s.State == "ESTAB" && s.TCP != nil {
			sum += s.TCP.BytesReceived
			n++
		}
	}
	return sum, n
}

// agree compares each connection, at rest, as the server, the client and the client's kernel have
// it.
func (w *watched) agree(client *lab.Net) {
	w.t.Helper()
	k := &script{t: w.t, dir: w.dir, net: client}
	if err := k.run(k.command([]string{need.Tool(w.t, "ss"), "-tinOH", "dport", "=",
		":80"})); err != nil {
		w.t.Fatal(err)
	}
	kernel := kernelSockets(w.t, k.stdout)
	ours := map[netip.AddrPort]*stack.TCPInfo{}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var sockets []stack.Socket
		w.decode(w.print("ss", "-tin"), &sockets)
		unacked := 0
		for _, s := range sockets {
			ours[s.Remote] = s.TCP
			unacked += s.SendQ
		}
		if unacked == 0 || time.Now().After(end) { // the last ACKs may be delayed
			break
		}
	}
	for _, a := range w.clients.all {
		o, k := ours[a.local], kernel[a.local]
		if o == nil || o.BytesReceived != a.done || o.BytesAcked != a.read ||
			k != [2]uint64{a.done, a.read} {
			w.t.Fatalf("%v: ss says %+v, the kernel %d sent and received; the client has sent %d "+
				"bytes and received %d", a.local, o, k, a.done, a.read)
		}
	}
}

// kernelSockets are bytes sent, each once, and received, by local address, from what ss -tinO
// prints.
func kernelSockets(t *testing.T, text string) map[netip.AddrPort][2]uint64 {
	line := regexp.MustCompile(`(?m)^ESTAB +\d+ +\d+ +(\S+) .* bytes_sent:(\d+) ` +
		`(?:bytes_retrans:(\d+) )?.*bytes_received:(\d+) `)
	all := map[netip.AddrPort][2]uint64{}
	for _, m := range line.FindAllStringSubmatch(text, -1) {
		sent, _ := strconv.ParseUint(m[2], 10, 64)
		again, _ := strconv.ParseUint(m[3], 10, 64)
		got, _ := strconv.ParseUint(m[4], 10, 64)
		all[netip.MustParseAddrPort(m[1])] = [2]uint64{sent - again, got}
	}
	if len(all) == 0 {
		t.Fatalf("the kernel's ss printed %.200q", text)
	}
	return all
}

// Phases of a pair: without looks, while the commands look, and the rest of the time from then on.
const (
	unseen = int32(iota)
	seen
	after
	phases
	unmeasured = int32(-1)
)

// TestManyConnections looks at a loaded server with ss -i, stats and capture: what they say agrees
// with the clients and with the client's kernel. Phases with looks and others are pairs, in turns
// the one first and the other, and the p99 of both is reported. make test-looks sets MANY, the
// number of connections, and PAIRS.
func TestManyConnections(t *testing.T) {
	connections, pairs, length := 200, 1, 100*time.Millisecond
	if many := os.Getenv("MANY"); many != "" {
		connections, pairs, length = countOf(t, many), countOf(t, os.Getenv("PAIRS")), 2*time.Second
	}
	w, client := newWatched(t, connections)
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- w.clients.askAll(stop) }()
	took := make([]time.Duration, pairs)
	for i := range pairs {
		of := phases * int32(i)
		for turn := range 2 {
			over := time.After(length)
			if turn == i%2 {
				w.clients.phase.Store(of + unseen)
				<-over
				continue
			}
			w.clients.phase.Store(of + seen)
			l := w.look()
			w.clients.phase.Store(of + after)
			<-over
			w.clients.phase.Store(unmeasured)
			took[i] = l.took
			w.agrees(l)
		}
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	w.agree(client)
	w.clients.report(t, took)
	w.stop(t)
}

func countOf(t *testing.T, text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%q: %v; want a number", text, err)
	}
	return n
}

// report notes the p99 with looks as a multiple of that without: of each pair, and of all together.
func (c *clients) report(t *testing.T, took []time.Duration) {
	pairs := len(took)
	ratios := make([]float64, pairs)
	var without, with, looking []int32
	for i := range pairs {
		of := phases * int32(i)
		ratios[i] = float64(c.p99(of+seen, of+after)) / float64(c.p99(of+unseen))
		without, looking = append(without, of+unseen), append(looking, of+seen)
		with = append(with, of+seen, of+after)
	}
	slices.Sort(ratios)
	slices.Sort(took)
	base := c.p99(without...)
	need.Note(t, fmt.Sprintf("%d connections, %d requests, %d pairs; a look takes %v; p99 without "+
		"looks %v, of all with looks %.3f times that, while the commands run %.3f times; of each "+
		"pair: median %.3f, %.3f to %.3f", len(c.all), c.done.Load()/uint64(len(manyRequest)),
		pairs, took[pairs/2].Round(time.Millisecond), base, float64(c.p99(with...))/float64(base),
		float64(c.p99(looking...))/float64(base), ratios[pairs/2], ratios[0], ratios[pairs-1]))
}
