package sim

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"github.com/miekg/dns"

	"github.com/rdma-netstack/rdma-netstack/apps/dnsd"
	"github.com/rdma-netstack/rdma-netstack/clock"
	"github.com/rdma-netstack/rdma-netstack/clock/clocktest"
)

// zone is the zone that name servers have.
const zone = "sim.example."

// The lengths of the texts of names: most fit a datagram, the last do not.
var textSizes = [...]int{1, 60, 400, 1000, 2000, 6000}

// text is the text of a name.
func (j *job) text(name int) string {
	b := make([]byte, textSizes[name])
	pattern{j.w.table, uint64(name) * 7919}.fill(b, 0)
	return base64.StdEncoding.EncodeToString(b)
}

// names runs dnsd on our first host, over UDP and TCP, and a client that asks it.
func (j *job) names() {
	j.w.spawn(j.name+", client", func(t *task) error {
		s, err := j.nameServer()
		if err != nil {
			return err
		}
		t.calls("open sockets")
		datagrams, err := j.packets(j.plan.Server)
		if err != nil {
			return err
		}
		streams, err := j.w.hosts[j.plan.Server].listen(j.bind(j.plan.Server))
		if err != nil {
			return errors.Join(err, datagrams.Close())
		}
		j.w.spawn(j.name+", UDP", func(*task) error { return s.ServeUDP(datagrams) })
		j.w.spawn(j.name+", TCP", func(*task) error { return s.ServeTCP(streams) })
		err = j.lookups(t)
		t.calls("shut the name server down")
		return errors.Join(err, s.Shutdown(context.Background()))
	})
}

// nameServer makes a server. It reads its zone from a file.
func (j *job) nameServer() (*dnsd.Server, error) {
	j.w.calls.Add(1)
	defer j.w.calls.Add(-1)
	f, err := os.CreateTemp("", "sim-zone-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(j.zone())
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	h := j.w.ours(j.plan.Server)
	return dnsd.New(dnsd.Config{Zones: []dnsd.Zone{{File: f.Name()}}, UDPWorkers: 2,
		ResponseRate: -1, Clock: clock.New(h.clock), Random: clocktest.Random(h.seed + 1)})
}

// zone is the text of the zone.
func (j *job) zone() string {
	var b strings.Builder
	fmt.Fprintf(&b, "$ORIGIN %s\n@ 60 IN SOA ns. admin. 1 60 60 60 60\n@ 60 IN NS ns.\n", zone)
	for name := range textSizes {
		fmt.Fprintf(&b, "n%d 60 IN TXT", name)
		for text := j.text(name); len(text) > 0; {
			n := min(len(text), 255)
			fmt.Fprintf(&b, " %q", text[:n])
			text = text[n:]
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// lookups asks for all names of the work: over UDP, and over TCP what is too long for that.
func (j *job) lookups(t *task) error {
	c, err := j.packets(j.plan.Client)
	if err != nil {
		return err
	}
	defer c.Close()
	answers := make(chan []byte, 2*questionTries)
	j.w.spawn(j.name+", reader", func(t *task) error { return collect(t, c, answers) })
	t.sleep(j.plan.Start)
	for n := range j.plan.Count {
		name := t.dice.IntN(len(textSizes) + 1) // the last is not there
		q := new(dns.Msg).SetQuestion(fmt.Sprintf("n%d.%s", name, zone), dns.TypeTXT)
		q.SetEdns0(uint16(one(t.dice, 512, 1232, maxQuestion)), false)
		q.Id = uint16(n + 1)
		a, err := j.overUDP(t, c, q, answers)
		if err == nil && a.Truncated {
			a, err = j.overTCP(t, q)
		}
		if err == nil {
			err = j.rightAnswer(name, a)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", q.Question[0].Name, err)
		}
		t.sleep(j.plan.Pause)
	}
	return nil
}

// rightAnswer says what is wrong with an answer.
func (j *job) rightAnswer(name int, a *dns.Msg) error {
	if name == len(textSizes) {
		if a.Rcode != dns.RcodeNameError || len(a.Answer) > 0 {
			return fmt.Errorf("a name that is not there: %v", a)
		}
		return nil
	}
	if a.Rcode != dns.RcodeSuccess || len(a.Answer) != 1 {
		return fmt.Errorf("%v", a)
	}
	txt, ok := a.Answer[0].(*dns.TXT)
	if !ok || strings.Join(txt.Txt, "") != j.text(name) {
		return fmt.Errorf("another text: %v", a)
	}
	return nil
}

// overUDP asks until there is an answer.
func (j *job) overUDP(t *task, c net.PacketConn, q *dns.Msg, answers <-chan []byte) (*dns.Msg,
	error) {
	wire, err := q.Pack()
	if err != nil {
		return nil, err
	}
	for range questionTries {
		t.calls("ask over UDP")
		to := net.UDPAddrFromAddrPort(j.reach())
		if _, err := c.WriteTo(wire, to); err != nil {
			j.w.logf("%s: ask: %v", t.name, err)
		}
		again := make(chan struct{})
		timer := j.w.clock.AfterFunc(questionWait, func() { close(again) })
		for asked := true; asked; {
			select {
			case b := <-answers:
				a := new(dns.Msg)
				if err := a.Unpack(b); err != nil {
					return nil, fmt.Errorf("answer of %d bytes: %w", len(b), err)
				}
				if a.Id == q.Id {
					timer.Stop()
					return a, nil
				}
			case <-again:
				asked = false
			}
		}
	}
	return nil, fmt.Errorf("asked %d times without an answer", questionTries)
}

// overTCP asks over a connection of its own. The server closes one on which no question comes for
// 30 s.
func (j *job) overTCP(t *task, q *dns.Msg) (a *dns.Msg, err error) {
	for tries := 0; ; tries++ {
		if a, err = j.tryTCP(t, q); err == nil {
			return a, nil
		}
		if !j.w.plan.harmful() || tries > 0 && j.w.clock.now() > j.w.calm {
			return nil, err
		}
		j.w.logf("%s: ask over TCP: %v", t.name, err)
		t.sleep(dialPause)
	}
}

func (j *job) tryTCP(t *task, q *dns.Msg) (*dns.Msg, error) {
	c, err := t.dial(j.plan.Client, j.reach)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	t.calls("ask over TCP")
	wire, err := q.Pack()
	if err != nil {
		return nil, err
	}
	if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(wire))),
		wire...)); err != nil {
		return nil, err
	}
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c, b); err != nil {
		return nil, err
	}
	a := new(dns.Msg)
	return a, a.Unpack(b)
}
