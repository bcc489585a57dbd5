package mlx5

import "testing"

// wqe is a descriptor under construction: put adds DS to it.
type wqe struct {
	b  []byte
	at int
}

func (w *wqe) next() []byte { return w.b[w.at:] }

func (w *wqe) ctrl(op Opcode, index uint16, ds, ce uint8) {
	PutCtrl(w.next(), op, 0, index, vecSQN, ds, ce)
	w.at += CtrlSegSize
}

func (w *wqe) eth(e Eth, hdr []byte) {
	e.InlineLen = uint16(len(hdr))
	PutEth(w.next(), e)
	if len(hdr) > 0 {
		PutInlineHeader(w.next(), hdr)
	}
	w.at += EthDS(len(hdr)) * DSSize
}

func (w *wqe) data(n uint32, addr uint64) {
	PutData(w.next(), n, vecLKey, addr)
	w.at += DataSegSize
}

func (w *wqe) inline(data []byte) { w.at += putInlineData(w.next(), data) * DSSize }

func TestSendWQEs(t *testing.T) {
	frame := vector(t, "frame60")
	csum := Eth{CsumFlags: CsumL3 | CsumL4}
	for _, tt := range []struct {
		name     string
		build    func(w *wqe)
		doorbell uint64
		bbs      int
	}{
		{"send inline", func(w *wqe) {
			w.ctrl(OpSend, 5, 4, CEAlways)
			w.eth(Eth{}, frame[:18])
			w.data(42, vecBuffer+18)
		}, 0x0000050a_00012304, 1},
		{"send vlan", func(w *wqe) {
			w.ctrl(OpSend, 6, 3, CEOnFirstError)
			w.eth(Eth{CsumFlags: CsumL3 | CsumL4, Insert: InsertCTag, TCI: 0x6064}, nil)
			w.data(60, vecBuffer)
		}, 0x0000060a_00012303, 1},
		{"send 8 segments", func(w *wqe) {
			w.ctrl(OpSend, 0xfffe, 10, CEAlways)
			w.eth(csum, nil)
			for i := range uint64(7) {
				w.data(2048, vecBuffer+i*0x1000)
			}
			w.data(664, vecBuffer+7*0x1000)
		}, 0x00fffe0a_0001230a, 3},
		{"lso", func(w *wqe) {
			w.ctrl(OpLSO, 8, 8, CEAlways)
			w.eth(Eth{CsumFlags: CsumL3 | CsumL4, MSS: 1460},
				vector(t, "lso")[16+InlineOffset:][:54])
			w.data(3000, vecBuffer)
			w.data(1000, vecBuffer+0x1000)
		}, 0x0000080e_00012308, 2},
		{"empw", func(w *wqe) {
			w.ctrl(OpEnhancedMPW, 10, 8, CEAlways)
			w.eth(csum, nil)
			w.data(60, vecBuffer)
			w.data(1514, vecBuffer+0x800)
			w.inline(frame)
		}, 0x00000a29_00012308, 2},
		{"nop", func(w *wqe) { w.ctrl(OpNOP, 12, 1, CEAlways) }, 0x00000c00_00012301, 1},
		{"send full inline", func(w *wqe) {
			w.ctrl(OpSend, 13, 6, CEAlways)
			w.eth(Eth{}, frame)
		}, 0x00000d0a_00012306, 2},
		{"send inline data", func(w *wqe) {
			w.ctrl(OpSend, 15, 6, CEAlways)
			w.eth(Eth{}, frame[:18])
			w.inline(frame[18:])
		}, 0x00000f0a_00012306, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := vector(t, tt.name)
			w := &wqe{b: poisoned(len(want))}
			tt.build(w)
			same(t, w.b, want)
			if w.at != len(want) || w.at/DSSize != int(CtrlDS.Get(want)) {
				t.Errorf("%d bytes long, the control segment says %d DS", w.at, CtrlDS.Get(want))
			}
			if got := Doorbell(w.b); got != tt.doorbell {
				t.Errorf("doorbell %#x, want %#x", got, tt.doorbell)
			}
			if got := BBs(w.at / DSSize); got != tt.bbs {
				t.Errorf("%d basic blocks, want %d", got, tt.bbs)
			}
		})
	}
}

func TestReceiveWQEs(t *testing.T) {
	for _, tt := range []struct {
		name  string
		build func(w *wqe)
	}{
		{"recv", func(w *wqe) { w.data(2048, vecBuffer) }},
		{"recv 4 segments", func(w *wqe) {
			w.data(2048, vecBuffer)
			w.data(4096, vecBuffer+0x2000)
			w.data(4096, vecBuffer+0x4000)
			PutData(w.next(), 0, EndOfListLKey, 0)
			w.at += DataSegSize
		}},
		{"recv striding", func(w *wqe) {
			PutNext(w.next(), 4)
			w.at += DSSize
			w.data(64*2048, vecBuffer)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := vector(t, tt.name)
			w := &wqe{b: poisoned(len(want))}
			tt.build(w)
			same(t, w.b, want)
		})
	}
}

// TestEncodersStayInside gives each encoder more room than its segment: the
// rest must keep its poison.
func TestEncodersStayInside(t *testing.T) {
	for _, tt := range []struct {
		name string
		put  func(b []byte)
		size int
	}{
		{"PutCtrl", func(b []byte) { PutCtrl(b, OpSend, 1, 2, 3, 4, 8) }, CtrlSegSize},
		{"PutEth", func(b []byte) { PutEth(b, Eth{MSS: 1}) }, EthSegSize},
		{"PutInlineHeader", func(b []byte) { PutInlineHeader(b, make([]byte, 19)) }, 48},
		{"PutData", func(b []byte) { PutData(b, 1, 2, 3) }, DataSegSize},
		{"PutInlineDataHeader", func(b []byte) { PutInlineDataHeader(b, 9) }, InlineHeaderSize},
		{"PutInlineData", func(b []byte) { putInlineData(b, make([]byte, 13)) }, 32},
		{"PutNext", func(b []byte) { PutNext(b, 1) }, DSSize},
		{"RxCQE", (&RxCQE{}).Put, CQESize},
		{"TxCQE", (&TxCQE{}).Put, CQESize},
		{"ErrorCQE", (&ErrorCQE{}).Put, CQESize},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := poisoned(tt.size + 16)
			tt.put(b)
			same(t, b[tt.size:], poisoned(16))
			short := func() (panicked bool) {
				defer func() { panicked = recover() != nil }()
				tt.put(poisoned(tt.size - 1))
				return false
			}
			if !short() {
				t.Error("wrote to a buffer one byte short")
			}
		})
	}
}

func TestSizesInDS(t *testing.T) {
	for inline, want := range map[int]int{0: 1, 1: 1, 2: 1, 3: 2, 18: 2,
		19: 3, 54: 5, 60: 5, 82: 6} {
		if got := EthDS(inline); got != want {
			t.Errorf("EthDS(%d) = %d, want %d", inline, got, want)
		}
	}
	for n, want := range map[int]int{0: 1, 12: 1, 13: 2, 28: 2, 29: 3, 60: 4} {
		if got := InlineDS(n); got != want {
			t.Errorf("InlineDS(%d) = %d, want %d", n, got, want)
		}
	}
	for ds, want := range map[int]int{1: 1, 4: 1, 5: 2, 8: 2, MaxDS: 15} {
		if got := BBs(ds); got != want {
			t.Errorf("BBs(%d) = %d, want %d", ds, got, want)
		}
	}
}

func TestDoorbellWords(t *testing.T) {
	for _, tt := range []struct {
		name      string
		sn        uint32
		solicited bool
		ci        uint32
		want      uint32
	}{
		{"any", 1, false, 0x12, 0x10000012},
		{"solicited", 1, true, 0x12, 0x11000012},
		{"wraps", 5, false, 0x1000012, 0x10000012},
		{"largest", 3, true, 0xffffff, 0x31ffffff},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := ArmWord(tt.sn, tt.solicited, tt.ci)
			if w != tt.want {
				t.Errorf("word %#x, want %#x", w, tt.want)
			}
			if got, want := ArmDoorbell(w, 0x45), uint64(tt.want)<<32|0x45; got != want {
				t.Errorf("doorbell %#x, want %#x", got, want)
			}
			sn, solicited, ci := ParseArmWord(w)
			if sn != tt.sn&3 || solicited != tt.solicited || ci != tt.ci&0xffffff {
				t.Errorf("parsed %d, %v, %#x", sn, solicited, ci)
			}
			rec := make([]byte, 8)
			DBRArmSN.Put(rec, uint64(tt.sn&3))
			DBRArmCI.Put(rec, uint64(tt.ci&0xffffff))
			if tt.solicited {
				DBRArmCmd.Put(rec, 1)
			}
			if got := beWord(rec[RecordArm:]); got != tt.want {
				t.Errorf("the table makes %#x", got)
			}
		})
	}
}

func beWord(b []byte) uint32 {
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}
