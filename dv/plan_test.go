package dv

import (
	"errors"
	"net"
	"testing"
)

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  Config
		mtu  int
		want plan
	}{
		{"defaults", Config{}, 1500, plan{rx: 1, tx: 1, rxEntries: 1024, txBlocks: 1024,
			stage: 1 << 20, frame: 1600, spare: 256, mtu: 1500, frameLimit: 1518, mtuLimit: 1582}},
		{"jumbo", Config{}, 9000, plan{rx: 1, tx: 1, rxEntries: 1024, txBlocks: 1024,
			stage: 1 << 20, frame: 2368, segs: 4, spare: 1024, mtu: 9000, frameLimit: 9018,
			mtuLimit: 9454}},
		{"jumbo in one buffer", Config{Tuning: Tuning{NoMultiSegment: true}}, 9000,
			plan{rx: 1, tx: 1, rxEntries: 1024, txBlocks: 1024, stage: 1 << 20, frame: 9024,
				spare: 256, mtu: 9000, frameLimit: 9018, mtuLimit: 9006}},
		{"own MTU", Config{NIC: NIC{MTU: 3000}}, 9000, plan{rx: 1, tx: 1, rxEntries: 1024,
			txBlocks: 1024,
			stage:    1 << 20, frame: 1600, segs: 2, spare: 512, mtu: 3000, frameLimit: 3018,
			mtuLimit: 3000}},
		{"longest in one buffer", Config{NIC: NIC{MTU: 2414}}, 9000, plan{rx: 1, tx: 1,
			rxEntries: 1024,
			txBlocks:  1024, stage: 1 << 20, frame: 2496, spare: 256, mtu: 2414, frameLimit: 2432,
			mtuLimit: 2414}},
		{"largest MTU", Config{NIC: NIC{MTU: 16384, Rings: Rings{RxQueueSize: 256}}}, 16384,
			plan{rx: 1, tx: 1, rxEntries: 256, txBlocks: 1024, stage: 1 << 20, frame: 2112, segs: 8,
				spare: 2048, mtu: 16384, frameLimit: 16402, mtuLimit: 16384}},
		{"asked for", Config{NIC: NIC{
			RxQueues: 2,
			TxQueues: 3,
			Rings:    Rings{RxQueueSize: 64, TxQueueSize: 128},
		},
			Tuning: Tuning{TxBufferSize: 128 << 10, SpareFrames: 1}}, 1500,
			plan{rx: 2, tx: 3, rxEntries: 64, txBlocks: 128, stage: 128 << 10, frame: 1600,
				spare: 1, mtu: 1500, frameLimit: 1518, mtuLimit: 1582}},
	} {
		c.want.pageSize, c.want.inline, c.want.segs = 4096, inlineMax, max(1, c.want.segs)
		c.want.active = c.want.rx
		if got, err := newPlan(&c.cfg, c.mtu, 4096); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v\nwant %+v", c.name, got, err, c.want)
		}
	}
}

// Whatever the number of queues, defaults stay below 32 MiB as long as the
// smallest queues do.
func TestPlanBudget(t *testing.T) {
	for _, queues := range []int{1, 2, 4, 8, 16, 32, 64} {
		for _, mtu := range []int{1500, 9000} {
			p, err := newPlan(&Config{NIC: NIC{RxQueues: queues, TxQueues: queues}}, mtu, 4096)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d queues, MTU %d: %.1f MiB, %d buffers, %d blocks, %d KiB staging a queue",
				queues, mtu,
				float64(p.pinnedBytes())/(1<<20), p.rxEntries, p.txBlocks, p.stage>>10)
			smallest := queues * (minRing*(p.segs*p.frame+80) + minRing*128 + minStage)
			if p.pinnedBytes() > 32<<20 && smallest < 24<<20 {
				t.Errorf("%d queues pin %d bytes", queues, p.pinnedBytes())
			}
		}
	}
}

// TestPlanLockable: 8 MiB of locked memory, which systems allow by default, do for one receive
// queue with the send queues of any number of processors, and for what is chosen by default on
// some; what is asked for is not cut down.
func TestPlanLockable(t *testing.T) {
	const limit = 8 << 20
	for _, page := range []int{4096, 16384} {
		for _, mtu := range []int{1500, 9000} {
			for _, q := range [][2]int{{1, 1}, {1, 2}, {1, 8}, {2, 8}} {
				p, err := newPlan(&Config{NIC: NIC{RxQueues: q[0], TxQueues: q[1]}}, mtu, page)
				if err != nil {
					t.Fatal(err)
				}
				p.shrinkToBudget(&Config{}, limit)
				t.Logf("pages of %d, MTU %d, queues %v: %.2f MiB, rings %d, %d, stage %d KiB, "+
					"spare %d", page, mtu, q, float64(p.pinnedBytes())/(1<<20), p.rxEntries,
					p.txBlocks, p.stage>>10, p.spare)
				if p.pinnedBytes() > limit || p.rxEntries < 2*minRing {
					t.Errorf("queues %v: %d bytes, receive rings of %d", q, p.pinnedBytes(),
						p.rxEntries)
				}
			}
		}
	}
	cfg := Config{NIC: NIC{Rings: Rings{RxQueueSize: 4096, TxQueueSize: 1024}},
		Tuning: Tuning{TxBufferSize: 1 << 20, SpareFrames: 256}}
	p, err := newPlan(&cfg, 1500, 4096)
	before := p
	if p.shrinkToBudget(&cfg, limit); err != nil || p != before {
		t.Errorf("%+v, %v, asked for %+v", p, err, before)
	}
}

// TestPlanSendMemory: memory to send from counts in what is locked and gives way first; there is
// none where no megabyte of it is left.
func TestPlanSendMemory(t *testing.T) {
	cfg := Config{}.WithSendMemory(func(int) ([]byte, error) { return nil, nil })
	usual, err := newPlan(&Config{}, 1500, 4096)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ limit, want int }{
		{1 << 30, 16 << 20}, {16<<20 + usual.pinnedBytes(), 16 << 20}, {16 << 20, 8 << 20},
		{8 << 20, 4 << 20}, {1<<20 + usual.pinnedBytes(), 1 << 20},
		{1<<20 + usual.pinnedBytes() - 1, 0}, {usual.pinnedBytes(), 0}, {2 << 20, 0},
	} {
		p, err := newPlan(&cfg, 1500, 4096)
		if err != nil || p.pinnedBytes() != usual.pinnedBytes()+16<<20 {
			t.Fatalf("%+v, %v", p, err)
		}
		p.shrinkToLimit(&cfg, tt.limit)
		least := usual
		least.shrinkToBudget(&Config{}, tt.limit)
		if least.sendMemory = tt.want; p != least || p.pinnedBytes() > tt.limit {
			t.Errorf("limit of %d: %d bytes in all,\n%+v, want\n%+v", tt.limit, p.pinnedBytes(), p,
				least)
		}
	}
}

// What is asked for is not cut down.
func TestPlanKeepsWhatIsAsked(t *testing.T) {
	cfg := Config{NIC: NIC{
		RxQueues: 4,
		TxQueues: 4,
		Rings:    Rings{RxQueueSize: 8192, TxQueueSize: 4096},
	}, Tuning: Tuning{TxBufferSize: 4 << 20}}
	p, err := newPlan(&cfg, 1500, 4096)
	if err != nil || p.rxEntries != 8192 || p.txBlocks != 4096 || p.stage != 4<<20 {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestPlanRefusals(t *testing.T) {
	for name, cfg := range map[string]Config{
		"negative queues":     {NIC: NIC{RxQueues: -1}},
		"more active queues":  {NIC: NIC{RxQueues: 2}, ActiveRxQueues: 3},
		"too many queues":     {NIC: NIC{TxQueues: 257}},
		"ring no power of 2":  {NIC: NIC{Rings: Rings{RxQueueSize: 1000}}},
		"ring too small":      {NIC: NIC{Rings: Rings{TxQueueSize: 32}}},
		"ring too large":      {NIC: NIC{Rings: Rings{TxQueueSize: 1 << 16}}},
		"staging too small":   {Tuning: Tuning{TxBufferSize: 64 << 10}},
		"MTU above the port":  {NIC: NIC{MTU: 1501}},
		"MTU too small":       {NIC: NIC{MTU: 100}},
		"negative spare":      {Tuning: Tuning{SpareFrames: -1}},
		"negative ring":       {NIC: NIC{Rings: Rings{RxQueueSize: -1024}}},
		"staging no power":    {Tuning: Tuning{TxBufferSize: 200 << 10}},
		"absurd frame number": {Tuning: Tuning{SpareFrames: 1 << 30}},
		"reserved VLAN":       {NIC: NIC{VLAN: 4095}},
	} {
		if _, err := newPlan(&cfg, 1500, 4096); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestChooseMAC(t *testing.T) {
	own := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	other := net.HardwareAddr{0x0c, 0x42, 0xa1, 0, 0, 1}
	port, function := PortFacts{Name: "mlx5_0", Netdev: "eth0", MAC: own},
		PortFacts{Name: "mlx5_2", Netdev: "eth1", MAC: own, Virtual: true}
	for _, c := range []struct {
		name  string
		cfg   Config
		facts PortFacts
		want  net.HardwareAddr // nil: refused
	}{
		{"given", Config{NIC: NIC{MAC: other}}, port, other},
		{"the netdev's", Config{NIC: NIC{MAC: own}}, port, nil},
		{"the netdev's, allowed", Config{NIC: NIC{MAC: own,
			Steering: Steering{AllowNetdevMAC: true}}}, port, own},
		{"multicast", Config{NIC: NIC{
			MAC:      net.HardwareAddr{1, 0, 0x5e, 0, 0, 1},
			Steering: Steering{AllowNetdevMAC: true},
		}},
			port, nil},
		{"broadcast", Config{NIC: NIC{MAC: net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}},
			port, nil},
		{"zero", Config{NIC: NIC{MAC: make(net.HardwareAddr, 6)}}, port, nil},
		{"8 bytes", Config{NIC: NIC{MAC: make(net.HardwareAddr, 8)}}, port, nil},
		{"empty", Config{NIC: NIC{MAC: net.HardwareAddr{}}}, port, nil},
		{"none on a virtual function", Config{}, function, nil},
		{"the function's own", Config{NIC: NIC{Steering: Steering{AllowNetdevMAC: true}}},
			function, own},
		{"the netdev's, which is not known",
			Config{NIC: NIC{Steering: Steering{AllowNetdevMAC: true}}},
			PortFacts{Name: "mlx5_0"}, nil},
		{"given on a virtual function", Config{NIC: NIC{MAC: other}}, function, other},
	} {
		got, err := chooseMAC(&c.cfg, &c.facts)
		if got.String() != c.want.String() || (err == nil) != (c.want != nil) ||
			err != nil && !errors.Is(err, ErrMAC) {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
}

func TestRandomMAC(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		mac, err := chooseMAC(&Config{}, &PortFacts{})
		if err != nil || mac[0]&3 != 2 || seen[mac.String()] {
			t.Fatalf("%v, %v: want a new, locally administered unicast address", mac, err)
		}
		seen[mac.String()] = true
	}
}
