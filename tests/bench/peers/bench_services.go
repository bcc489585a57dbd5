package main

// The benchmarks of whole services.

// serviceBenches are measured in the first rounds, on some peers.
func serviceBenches() []bench {
	list := []bench{
		{name: "tls", quick: true, for_: servedBy, run: (*sample).tls},
		{name: "tls-up", for_: servedBy, run: bulkTLS("up")},
		{name: "tls-down", for_: servedBy, run: bulkTLS("down")},
		{name: "http2", for_: servedBy, run: (*sample).http2},
		{name: "http3", quick: true, apart: true, for_: overQUIC, run: (*sample).http3},
		{name: "http3-batched", apart: true, for_: batching, run: (*sample).http3Batched},
		{name: "http3-up", for_: servedBy, run: bulkHTTP3("http3 up", "up", portHTTP3)},
		{name: "http3-down", apart: true, for_: overQUIC,
			run: bulkHTTP3("http3 down", "down", portHTTP3)},
		{name: "http3-up-batched", for_: batching,
			run: bulkHTTP3("http3 batched up", "up", portBatched)},
		{name: "http3-down-batched", apart: true, for_: batching,
			run: bulkHTTP3("http3 batched down", "down", portBatched)},
		{name: "grpc", for_: servedBy, run: (*sample).grpc},
		{name: "grpc-pull", for_: servedBy, run: (*sample).grpcPull},
		{name: "many", for_: servedBy, run: (*sample).manyConnections},
		{name: "many-udp", for_: servedBy, run: (*sample).manyUDP},
		{name: "sfu", apart: true, for_: forwarding, run: sfu("sfu", portSFU)},
		{name: "sfu-batched", apart: true, for_: forwarding,
			run: sfu("sfu batched", portSFUBatched)},
		{name: "fasthttp", for_: servedBy, run: (*sample).fastHTTP},
		{name: "proxy", for_: servedBy, run: (*sample).proxy},
	}
	for i := range list {
		list[i].few = true
	}
	return list
}

func (s *sample) tls() error {
	return s.wrk("tls", pageOf("https", portHTTP+overTLS), s.whole(1), webConns)
}

func bulkTLS(kind string) func(*sample) error {
	return func(s *sample) error {
		return s.transfer("tls "+kind, load{Kind: kind, Flows: 1, TLS: true})
	}
}

func (s *sample) http2() error {
	return s.answers("http2", load{Kind: "http2", Flows: webConns})
}

func (s *sample) http3() error {
	return s.answers("http3", load{Kind: "http3", Flows: webConns, Port: portHTTP3})
}

func (s *sample) http3Batched() error {
	return s.answers("http3 batched", load{Kind: "http3", Flows: webConns, Port: portBatched})
}

// bulkHTTP3 measures one connection, on a plain socket and on one that has batches.
func bulkHTTP3(name, kind string, port int) func(*sample) error {
	return func(s *sample) error {
		return s.transfer(name, load{Kind: "http3 " + kind, Flows: 1, Port: port})
	}
}

func (s *sample) grpc() error {
	return s.answers("grpc", load{Kind: "grpc", Flows: webConns})
}

func (s *sample) grpcPull() error {
	return s.answers("grpc pull", load{Kind: "grpc pull", Flows: webConns / streams})
}

// manyConnections has few requests in flight, over many connections.
func (s *sample) manyConnections() error {
	if _, err := s.loads.load(load{Kind: "idle", Seconds: 10, Flows: busyConns}); err != nil {
		return err
	}
	return s.answers("many", load{Kind: "many"})
}

// manyUDP has a datagram in flight on each of many pairs of sockets.
func (s *sample) manyUDP() error {
	return s.answers("many udp", load{Kind: "udp echo", Flows: manySockets, Size: smallUDP,
		Port: portMany})
}

// sfu measures a selective forwarding unit at a load that every peer has time for.
func sfu(name string, port int) func(*sample) error {
	return func(s *sample) error {
		l := load{Kind: "sfu", Seconds: s.seconds(sfuTime), Flows: sfuSubscribers, Rate: sfuRate,
			Size: sfuPacket, Port: port}
		m, err := s.measured(l, name, "requests", micro)
		if err != nil {
			return err
		}
		s.out[name], s.out[name+" lost"] = m["rate"], m["lost"]
		s.packets(name, m["requests"])
		return nil
	}
}

func (s *sample) fastHTTP() error {
	return s.wrk("fasthttp", pageOf("http", portFast), s.whole(1), webConns)
}

func (s *sample) proxy() error {
	return s.wrk("proxy", pageOf("http", portProxy), s.whole(1), webConns)
}
