package main

// The benchmarks. Each fills s.out with values of the catalogue.

const (
	webConns   = 64
	newConns   = 32
	pacedRate  = 10000 // requests per second, which every configuration can serve
	smallUDP   = 64    // bytes of payload
	pingCount  = 1000
	bulkTime   = 0.6 // seconds
	shortTime  = 0.4
	memoryStep = 2000
)

func (s *sample) http() error {
	var m metrics
	u, client, err := s.during(func() (err error) {
		m, err = wrk(s.ctx, s.client, s.files.script, s.whole(2), webConns)
		return err
	})
	if err != nil {
		return err
	}
	s.out["http"], s.out["http p50"], s.out["http p99"], s.out["http p99.9"] = m["rate"],
		m["p50"], m["p99"], m["p999"]
	s.out["http errors"] = m["errors"]
	s.costs("http", u, client, m["requests"], micro)
	return nil
}

func (s *sample) conns() error {
	var m metrics
	u, client, err := s.during(func() (err error) {
		m, err = wrk(s.ctx, s.client, s.files.script, s.whole(1), newConns, "Connection: close")
		return err
	})
	if err != nil {
		return err
	}
	s.out["conns"] = m["rate"]
	s.costs("conns", u, client, m["requests"], micro)
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

// bulk measures one direction with that many flows; costs are per GB.
func bulk(kind string, flows int) func(*sample) error {
	return func(s *sample) error {
		name := kind + " " + map[int]string{1: "1", 8: "8", 16: "16"}[flows]
		m, err := s.measured(load{Kind: kind, Seconds: s.seconds(bulkTime), Flows: flows}, name,
			"bytes", 1e9)
		if err == nil {
			s.out[name] = m["rate"]
		}
		return err
	}
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
	l := load{Kind: "udp down", Seconds: s.seconds(shortTime), Size: smallUDP}
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
