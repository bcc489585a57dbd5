package hostmode

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// load is how many connections there are of each kind.
type load struct{ outside, dials, local, container, parallel int }

var short = load{outside: 200, dials: 40, local: 40, container: 40, parallel: 32}

// long has n connections from outside, and a tenth of it of the others.
func long(n int) load {
	return load{outside: n, dials: n / 10, local: n / 10, container: n / 10, parallel: 128}
}

// dialPorts is how many ports of one host the server connects to: to each it can make 256
// connections in the time of TIME-WAIT.
const dialPorts = 8

// TestMany has clients everywhere at the same time, while the server connects to others. All of it
// is byte exact, each client is served by whom it should be, and nobody is answered twice or reset.
func TestMany(t *testing.T) { many(t, newWorld(t), short) }

// connectionsEnv is how many connections from outside TestManyLong makes.
const connectionsEnv = "HOST_CONNECTIONS"

// TestManyLong is TestMany and TestManyRings with as many connections as the environment says, or
// make test-host, which sets HOST: 10,000.
func TestManyLong(t *testing.T) {
	text := os.Getenv(connectionsEnv)
	if text == "" && os.Getenv("HOST") != "" {
		text = "10000"
	}
	if text == "" {
		return
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	onBoth(t, func(t *testing.T, w *world) { many(t, w, long(n)) })
}

func many(t *testing.T, w *world, n load) {
	for i := range dialPorts {
		echoServer(t, w.outside, fmt.Sprintf(":%d", 9100+i))
	}
	echoServer(t, w.host, ":9000") // a kernel's server on the same address
	echoServer(t, w.container, ":9100")
	s := w.start(t, "tcp :8080", "udp :5300")
	seen, sent := watch(t, w.outside), watchSent(t, w.host)
	resets := w.kernelCounter(t, "Tcp", "OutRsts")
	unreachable := w.kernelCounter(t, "Icmp", "OutDestUnreachs")

	const largeDatagrams, largeDatagram = 20, 20000
	began := time.Now()
	visits := func(from *lab.Net, to, owner string, n, parallel int) func() error {
		return func() error {
			return each(n, parallel, func(i int) error {
				c, err := dial(from, to)
				if err != nil {
					return err
				}
				return visit(c, owner, i, 20000)
			})
		}
	}
	jobs := map[string]func() error{
		"from outside":    visits(w.outside, hostIP+":8080", "stack", n.outside, n.parallel),
		"from the host":   visits(w.host, hostIP+":8080", "kernel", n.local, n.parallel/4),
		"from containers": visits(w.container, hostIP+":8080", "kernel", n.container, n.parallel/4),
		"over IPv6": visits(w.outside, "["+hostIPv6+"]:8080", "stack", n.local/4,
			n.parallel/4),
		"dials out": func() error {
			for i := range dialPorts {
				got := s.do(fmt.Sprintf("dial %s:%d %d", outsideIP, 9100+i, n.dials/dialPorts))
				want := fmt.Sprintf("dialled: stack %d, kernel 0", n.dials/dialPorts)
				if got != want {
					return fmt.Errorf("%s; want %s", got, want)
				}
			}
			want := "dialled: stack 0, kernel 4"
			if got := s.do(fmt.Sprintf("dial %s:9100 4", containerIP)); got != want {
				return fmt.Errorf("to the container %s; want %s", got, want)
			}
			return nil
		},
		"the kernel's server": func() error {
			return each(n.local, n.parallel/4, func(i int) error {
				c, err := dial(w.outside, hostIP+":9000")
				if err != nil {
					return err
				}
				return echo(c, payload(i, 20000))
			})
		},
		"datagrams from outside": func() error {
			return datagrams(w.outside, hostIP, n.local,
				100)
		},
		"large datagrams": func() error {
			return datagrams(w.outside, hostIP, largeDatagrams, largeDatagram)
		},
		"datagrams from the host": func() error { return datagrams(w.host, hostIP, n.local, 100) },
		"datagrams from a container": func() error {
			return datagrams(w.container, hostIP, n.local, 40000)
		},
		"ping": func() error { return ping(t, w.outside, hostIP, w.rings) },
	}
	results := make(chan error, len(jobs))
	for name, job := range jobs {
		go func() {
			err := job()
			if err != nil {
				err = fmt.Errorf("%s: %w", name, err)
			}
			results <- err
		}()
	}
	for range jobs {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	took := time.Since(began)
	if w.given {
		givenSilence(t, sent)
	} else {
		w.silence(t, s, seen, sent, resets)
	}
	if got := w.kernelCounter(t, "Icmp", "OutDestUnreachs") - unreachable; got != 0 {
		t.Errorf("the kernel has sent %d ICMP errors", got)
	}
	need.Note(t,
		fmt.Sprintf("host mode: %d from outside, %d dials, %d local, %d from a container: "+
			"%v; open with 256 ports to dial from %v; %s", n.outside, n.dials, n.local, n.container,
			took.Round(time.Millisecond), s.opened.Round(time.Millisecond), s.ok("stats")))
	if w.rings {
		s.steered(t, largeDatagrams*(largeDatagram/1480+1))
	}
	s.stop()
}

// givenSilence requires that the kernel has said nothing from the server's ports by a given card's
// netdev: it answered no SYN and reset nobody. Whom the server serves by the kernel, on lo and the
// bridge, are not seen there. An emulated processor may take seconds for what is sent again after a
// second at most, so that the stack answers a SYN that has been late for its connection's end.
func givenSilence(t *testing.T, sent *capture) {
	t.Helper()
	resets, _ := sent.counts(8080)
	if answers := sent.answers(8080); resets != 0 || answers != 0 {
		t.Errorf("the kernel has answered %d SYNs to the server's port, and sent %d RSTs from its "+
			"ports; by port %v", answers, resets, sent.byPort())
	}
	if sent.answers(9000) == 0 {
		t.Error("the kernel's answers of its own server were not seen")
	}
}

// silence requires that the kernel has reset nobody, and that one has answered each SYN.
func (w *world) silence(t *testing.T, s *server, seen, sent *capture, resets int) {
	t.Helper()
	// With a card frames are lost and overtaken, and the kernel resets what comes behind the end of
	// a connection to its own server.
	other := 0
	if w.rings {
		other = sent.from(9000) // some are lost on the way
	}
	if got := w.kernelCounter(t, "Tcp", "OutRsts") - resets; got > other {
		t.Errorf("the kernel has sent %d RSTs, %d of them for its own server; by port %v", got,
			other, sent.byPort())
	}
	// The stack resets what comes behind the end of a connection: an ACK that another processor
	// of the client sent has been overtaken by its last one. netstack counts a RST after it has
	// sent it, so that one may be on the wire before it is counted.
	var rst, twice, own int
	for deadline := time.Now().Add(5 * time.Second); ; {
		var err error
		rst, twice = seen.counts(8080)
		own, err = strconv.Atoi(s.ok("resets"))
		must(t, err)
		if rst <= own || time.Now().After(deadline) {
			break
		}
	}
	if rst > own || twice != 0 {
		t.Errorf("%d RSTs on the wire, %d of them the stack's; %d SYNs answered twice", rst, own,
			twice)
	}
}

// echoServer echoes connections on a kernel socket of a namespace.
func echoServer(t testing.TB, n *lab.Net, at string) {
	t.Helper()
	ln, err := n.Listen("tcp", at)
	must(t, err)
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
}

// datagrams sends n datagrams of a size, and requires each back, and none more often than it was
// sent: one that is on its way for long is sent again.
func datagrams(from *lab.Net, to string, n, size int) error {
	pc, err := from.ListenPacket("udp4", ":0")
	if err != nil {
		return err
	}
	defer pc.Close()
	addr := &net.UDPAddr{IP: net.ParseIP(to), Port: 5300}
	waiting := map[string]int{} // datagrams sent, less those that came back
	for i := range n {
		sent := payload(i, size)
		if err := exchange(pc, addr, sent, waiting); err != nil {
			return fmt.Errorf("datagram %d: %w", i, err)
		}
	}
	err = answer(pc, 50*time.Millisecond, nil, waiting)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// exchange sends a datagram, up to four times if no answer comes.
func exchange(pc net.PacketConn, to net.Addr, sent []byte, waiting map[string]int) error {
	for range 4 {
		waiting[string(sent)]++
		if _, err := pc.WriteTo(sent, to); err != nil {
			return err
		}
		err := answer(pc, 5*time.Second, sent, waiting)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return errors.New("no answer")
}

// answer reads until sent comes back, and refuses what was not sent as often.
func answer(pc net.PacketConn, within time.Duration, sent []byte, waiting map[string]int) error {
	b := make([]byte, 65536)
	for pc.SetReadDeadline(time.Now().Add(within)); ; {
		n, _, err := pc.ReadFrom(b)
		if err != nil {
			return err
		}
		switch waiting[string(b[:n])] {
		case 0:
			return fmt.Errorf("%d bytes came that were not sent, or not as often", n)
		case 1:
			delete(waiting, string(b[:n]))
		default:
			waiting[string(b[:n])]--
		}
		if string(b[:n]) == string(sent) {
			return nil
		}
	}
}

// ping requires that every echo request is answered once; of those that a software card may lose,
// five. It is given a minute.
func ping(t testing.TB, from *lab.Net, to string, lossy bool) error {
	args := []string{"-c", "5", "-i", "0.2"}
	if lossy {
		args = append(args, "-w", "60") // until as many answers
	}
	cmd := exec.Command(need.Tool(t, "ping"), append(args, to)...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := from.Start(cmd); err != nil {
		return err
	}
	// More than five are answered if an answer takes longer than the next request.
	if err := cmd.Wait(); err != nil || strings.Contains(out.String(), "DUP!") ||
		!lossy && !strings.Contains(out.String(), "5 received") {
		return fmt.Errorf("ping %s: %v: %s", to, err, out.String())
	}
	return nil
}
