package main

// The benchmarks over a long cable with losses. They record no costs: the relay has most of them.

const (
	wanTime  = 3 // seconds
	wanFlows = 8
	wanConns = 16
)

// wanBenches are run on peers that have a long cable, on no others.
func wanBenches() []bench {
	over := func(p *peer) bool { return p.wan() }
	return []bench{
		{name: "wan-up", extra: true, for_: over, run: wanBulk("up")},
		{name: "wan-down", extra: true, for_: over, run: wanBulk("down")},
		{name: "wan-http", extra: true, for_: over, run: (*sample).wanHTTP},
	}
}

func wanBulk(kind string) func(*sample) error {
	return func(s *sample) error {
		m, err := s.overWAN(load{Kind: kind, Flows: wanFlows})
		if err == nil {
			s.out["wan "+kind] = m["rate"]
		}
		return err
	}
}

func (s *sample) wanHTTP() error {
	m, err := s.overWAN(load{Kind: "http", Flows: wanConns})
	if err == nil {
		s.out["wan http"], s.out["wan http p50"] = m["rate"], m["us_p50"]/1e3
		s.out["wan http p99"], s.out["wan http p99.9"] = m["us_p99"]/1e3, m["us_p99.9"]/1e3
	}
	return err
}

// overWAN runs a load; during is for the noise and the counters.
func (s *sample) overWAN(l load) (m metrics, err error) {
	l.Seconds = s.seconds(wanTime)
	_, _, err = s.during(func() (err error) {
		m, err = s.loads.load(l)
		return err
	})
	return m, err
}
