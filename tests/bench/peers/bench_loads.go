package main

import "fmt"

// The benchmarks. Each fills s.out with values of the catalogue.

const (
	webConns  = 64
	newConns  = 32
	pacedRate = 10000 // requests per second, which every configuration can serve
	smallUDP  = 64    // bytes of payload
	sfuPacket = 1000  // bytes of RTP, its header included
	sfuRate   = 60000 // of them that a unit sends per second

	sfuSubscribers = 200

	pingCount  = 1000
	bulkTime   = 0.6 // seconds
	shortTime  = 0.4
	sfuTime    = 2 // as most of it the server does nothing
	answerTime = 0.7
	busyConns  = 1000
	memoryStep = 2000
)

func (s *sample) http() error {
	return s.wrk("http", pageOf("http", portHTTP), s.whole(2), webConns)
}

func (s *sample) conns() error {
	return s.wrk("conns", pageOf("http", portHTTP), s.whole(1), newConns, "Connection: close")
}

// pageOf is the address of a service's page.
func pageOf(scheme string, port int) string {
	return scheme + "://" + at(serverPrefix, port) + "/"
}

// wrk measures requests for a page.
func (s *sample) wrk(name, url string, seconds, conns int, headers ...string) error {
	var m metrics
	u, client, err := s.during(func() (err error) {
		m, err = wrk(s.ctx, s.client, s.files.script, url, seconds, conns, headers...)
		return err
	})
	if err != nil {
		return err
	}
	if m["errors"] > m["requests"]/2 {
		return fmt.Errorf("wrk: %.0f errors and %.0f answers from %s", m["errors"],
			m["requests"], url)
	}
	s.out[name], s.out[name+" p50"], s.out[name+" p99"], s.out[name+" p99.9"] = m["rate"],
		m["p50"], m["p99"], m["p999"]
	s.out[name+" errors"] = m["errors"]
	s.costs(name, u, client, m["requests"], micro)
	s.packets(name, m["requests"])
	return nil
}

func (s *sample) dns() error {
	var m metrics
	u, client, err := s.during(func() (err error) {
		m, err = dnsperf(s.ctx, s.client, s.files.queries, s.whole(1))
		return err
	})
	if err != nil {
		return err
	}
	s.out["dns"], s.out["dns lost"] = m["rate"], m["lost"]
	s.costs("dns", u, client, m["sent"], micro)
	s.packets("dns", m["sent"])
	return nil
}

func (s *sample) memHTTP() error {
	m, err := s.measured(load{Kind: "http", Seconds: s.seconds(1), Flows: webConns},
		"mem http", "requests", micro)
	if err != nil {
		return err
	}
	s.out["mem http"], s.out["mem http p50"], s.out["mem http p99"] = m["rate"], m["us_p50"],
		m["us_p99"]
	return nil
}

// bulk measures one direction with that many flows.
func bulk(kind string, flows int) func(*sample) error {
	return func(s *sample) error {
		return s.transfer(fmt.Sprintf("%s %d", kind, flows), load{Kind: kind, Flows: flows})
	}
}

// pieces lists the sizes of writes that are compared, in bytes: 65,375 fill a packet of netstack's.
var pieces = []struct {
	key, title string
	size       int
}{
	{"4k", "writes of 4 KiB", 4 << 10}, {"16k", "writes of 16 KiB", 16 << 10},
	{"64k", "writes of 64 KiB", 64 << 10}, {"65375", "writes of 65,375 bytes", 65375},
	{"256k", "writes of 256 KiB", 256 << 10}, {"file", "a file", 0},
}

// writeBenches measure one flow from the server, each with writes of one size.
func writeBenches() (list []bench) {
	for _, p := range pieces {
		list = append(list, bench{name: "down-" + p.key, few: true, apart: true, for_: onTAP,
			run: func(s *sample) error {
				return s.transfer("down "+p.key, load{Kind: "pieces", Flows: 1, Size: p.size})
			}})
	}
	return list
}

// transfer measures a bulk load; costs are per GB.
func (s *sample) transfer(name string, l load) error {
	l.Seconds = s.seconds(bulkTime)
	m, err := s.measured(l, name, "bytes", 1e9)
	if err == nil {
		s.out[name] = m["rate"]
		s.packets(name, m["bytes"]/1e6)
	}
	return err
}

// answers measures requests that a load process sends as fast as they are answered.
func (s *sample) answers(name string, l load) error {
	l.Seconds = s.seconds(answerTime)
	m, err := s.measured(l, name, "requests", micro)
	if err != nil {
		return err
	}
	s.out[name], s.out[name+" p50"], s.out[name+" p99"] = m["rate"], m["us_p50"], m["us_p99"]
	s.packets(name, m["requests"])
	return nil
}

// measured runs a load of the load process and records the server's costs per unit of one of its
// counts.
func (s *sample) measured(l load, name, work string, unit float64) (m metrics, err error) {
	u, client, err := s.during(func() (err error) {
		m, err = s.loads.load(l)
		return err
	})
	if err == nil {
		s.costs(name, u, client, m[work], unit)
	}
	return m, err
}

func (s *sample) udpUp() error {
	l := load{Kind: "udp up", Seconds: s.seconds(shortTime), Size: smallUDP}
	var m metrics
	u, client, err := s.during(func() (err error) {
		m, err = s.loads.load(l)
		return err
	})
	if err != nil {
		return err
	}
	s.out["udp rx"], s.out["udp rx offered"] = u.Datagrams/l.Seconds, m["sent"]/l.Seconds
	s.costs("udp rx", u, client, u.Datagrams, micro)
	return nil
}

func (s *sample) udpDown() error {
	l := load{Kind: "udp down", Seconds: s.seconds(shortTime), Size: smallUDP, Each: 1}
	var m metrics
	u, client, err := s.during(func() (err error) {
		m, err = s.loads.load(l)
		return err
	})
	if err != nil {
		return err
	}
	s.out["udp tx"], s.out["udp tx got"] = u.Sent/l.Seconds, m["rate"]
	s.costs("udp tx", u, client, u.Sent, micro)
	return nil
}

// udpSegments makes the server send datagrams that fill frames, as many in each call as it takes.
func (s *sample) udpSegments() error {
	l := load{Kind: "udp down", Seconds: s.seconds(shortTime), Size: 1400, Each: 46}
	var m metrics
	u, client, err := s.during(func() (err error) {
		m, err = s.loads.load(l)
		return err
	})
	switch {
	case err != nil:
		return err
	case u.Sent == 0:
		return fmt.Errorf("UDP_SEGMENT: none of %v writes went out", u.Failed)
	}
	bytes := u.Sent * float64(l.Size)
	s.out["udp segments"], s.out["udp segments got"] = bytes/1e6/l.Seconds,
		m["rate"]*float64(l.Size)/1e6
	s.costs("udp segments", u, client, bytes, 1e9)
	return nil
}

func (s *sample) udpEcho() error {
	m, err := s.measured(load{Kind: "udp echo", Seconds: s.seconds(shortTime), Size: smallUDP,
		Flows: 8}, "udp echo", "requests", micro)
	if err == nil {
		s.out["udp echo"] = m["rate"]
	}
	return err
}

func (s *sample) paced() error {
	m, err := s.measured(load{Kind: "paced", Seconds: s.seconds(1), Flows: webConns,
		Rate: pacedRate}, "paced", "requests", micro)
	if err != nil {
		return err
	}
	s.out["paced"], s.out["paced p50"], s.out["paced p99"], s.out["paced p99.9"] = m["rate"],
		m["us_p50"], m["us_p99"], m["us_p99.9"]
	s.out["busy rtt p50"], s.out["busy rtt p99"] = m["probe_p50"], m["probe_p99"]
	return nil
}

func (s *sample) rtt() error {
	m, err := s.loads.load(load{Kind: "rtt", Seconds: s.seconds(shortTime)})
	if err == nil {
		s.out["rtt p50"], s.out["rtt p99"] = m["us_p50"], m["us_p99"]
	}
	return err
}

func (s *sample) ping() error {
	m, err := ping(s.ctx, s.client, max(100, int(pingCount*s.scale)))
	if err == nil {
		s.out["ping"] = m["avg"] * 1e3
	}
	return err
}
