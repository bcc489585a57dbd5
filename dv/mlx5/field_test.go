package mlx5

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// layouts is every field table.
func layouts() []*Layout {
	return []*Layout{
		&CtrlLayout, &EthLayout, &EthInsertLayout, &DataLayout, &InlineLayout, &NextLayout,
		&QPRecordLayout, &CQRecordLayout,
		&CQELayout, &LROLayout, &StridingLayout, &SendCQELayout, &ErrorCQELayout,
		layoutOf(MiniHash), layoutOf(MiniCsum), layoutOf(MiniTagStride), layoutOf(MiniCsumStride),
		layoutOf(MiniHeaderStride),
	}
}

// TestFields writes each field of each table into poison: the field reads back,
// nothing outside its bits changes, and no other field of the table does.
func TestFields(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seed(t), 0))
	for _, l := range layouts() {
		t.Run(l.Name, func(t *testing.T) {
			for i, f := range l.Fields {
				if f.Byte+f.Size() > l.Size || f.Lo > f.Hi || f.Name == "" {
					t.Fatalf("%+v does not fit %d bytes", f, l.Size)
				}
				b := poisoned(l.Size)
				v := rnd.Uint64() & f.Max()
				f.Put(b, v)
				if f.Get(b) != v {
					t.Errorf("%s: put %#x, got %#x", f.Name, v, f.Get(b))
				}
				checkPoison(t, f, b)
				for j, other := range l.Fields {
					if i != j && other.Get(b) != other.Get(poisoned(l.Size)) {
						t.Errorf("%s and %s overlap", f.Name, other.Name)
					}
				}
			}
		})
	}
}

// checkPoison fails if b differs from poison outside field f.
func checkPoison(t *testing.T, f Field, b []byte) {
	t.Helper()
	f.Put(b, f.Get(poisoned(len(b))))
	same(t, b, poisoned(len(b)))
}

func TestPutRefusesWhatDoesNotFit(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("64 DS fit 6 bits")
		}
	}()
	CtrlDS.Put(make([]byte, CtrlSegSize), 64)
}

// TestEncodersAgreeWithTables builds each segment twice from random values: by
// the fast encoder into poison, and by its table into zeros.
func TestEncodersAgreeWithTables(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seed(t), 0))
	for range 2000 {
		for _, l := range []struct {
			layout *Layout
			put    func(b []byte, v map[Field]uint64)
		}{
			{&CtrlLayout, putCtrlFields},
			{&EthLayout, putEthFields},
			{&EthInsertLayout, putEthFields},
			{&DataLayout, putDataFields},
			{&NextLayout, func(b []byte, v map[Field]uint64) {
				v[NextSignature] = 0
				PutNext(b, uint16(v[NextIndex]))
			}},
			{&CQELayout, putRxFields},
			{&SendCQELayout, putTxFields},
			{&ErrorCQELayout, putErrorFields},
		} {
			values := map[Field]uint64{}
			for _, f := range l.layout.Fields {
				values[f] = rnd.Uint64() & f.Max()
			}
			fast, table := poisoned(l.layout.Size), make([]byte, l.layout.Size)
			l.put(fast, values) // sets to zero what the encoder cannot say
			for _, f := range l.layout.Fields {
				f.Put(table, values[f])
			}
			if same(t, fast, table); t.Failed() {
				t.Fatalf("%s: %s", l.layout.Name, l.layout.String(table))
			}
		}
	}
}

func putCtrlFields(b []byte, v map[Field]uint64) {
	v[CtrlSignature], v[CtrlStream], v[CtrlImm] = 0, 0, 0
	PutCtrl(b, Opcode(v[CtrlOpcode]), uint8(v[CtrlOpMod]), uint16(v[CtrlIndex]),
		uint32(v[CtrlQPN]), uint8(v[CtrlDS]),
		uint8(v[CtrlFM]<<5|v[CtrlCE]<<2|v[CtrlSE]<<1))
}

func putEthFields(b []byte, v map[Field]uint64) {
	v[EthTrailer] = 0
	e := Eth{
		CsumFlags: uint8(v[EthL4Csum]<<7 | v[EthL3Csum]<<6 |
			v[EthL4InnerCsum]<<5 | v[EthL3InnerCsum]<<4),
		SWPFlags: uint8(v[EthSWPFlags]),
		SWPOffsets: uint32(v[EthSWPOuterL4]<<24 | v[EthSWPOuterL3]<<16 | v[EthSWPInnerL4]<<8 |
			v[EthSWPInnerL3]),
		MSS:       uint16(v[EthMSS]),
		Metadata:  uint32(v[EthMetadata]),
		InlineLen: uint16(v[EthInlineLen]),
		Insert:    uint16(v[EthInsert]<<15 | v[EthInsertSVLAN]),
		TCI:       uint16(v[EthTCI]),
	}
	PutEth(b, e)
}

func putDataFields(b []byte, v map[Field]uint64) {
	PutData(b, uint32(v[DataInline]<<31|v[DataByteCount]), uint32(v[DataLKey]), v[DataAddr])
}

func opOwnOf(v map[Field]uint64) uint8 {
	return OpOwn(CQEOpcode(v[CQEKind]), uint8(v[CQEFormat]),
		uint8(v[CQESolicited]), uint8(v[CQEOwner]))
}

func putRxFields(b []byte, v map[Field]uint64) {
	for _, f := range []Field{CQETunneled, CQEOuterL3, CQETLSState, CQEMLPath, CQEIPExtInfo,
		CQELROSegments, CQEDrops, CQESignature} {
		v[f] = 0
	}
	status := v[CQEL4OK]<<10 | v[CQEL3OK]<<9 | v[CQEL2OK]<<8 | v[CQEIPFragment]<<7 |
		v[CQEL4Type]<<HdrL4Shift |
		v[CQEL3Type]<<HdrL3Shift | v[CQEIPExt]<<1 | v[CQEVLANStripped]
	r := RxCQE{
		Hash: uint32(v[CQEHash]), HashType: uint8(v[CQEHashType]),
		Checksum: uint16(v[CQEChecksum]), Status: uint16(status),
		VLAN: uint16(v[CQEVLAN]), UIdx: uint32(v[CQEUIdx]), Metadata: uint32(v[CQEMetadata]),
		ByteCount: uint32(v[CQEByteCount]),
		Timestamp: v[CQETimestamp], FlowTag: uint32(v[CQEFlowTag]),
		Counter: uint16(v[CQEWQECounter]), OpOwn: opOwnOf(v),
	}
	r.Put(b)
}

func putTxFields(b []byte, v map[Field]uint64) {
	v[CQEByteCount], v[CQESignature] = 0, 0
	c := TxCQE{
		UIdx: uint32(v[CQEUIdx]), Timestamp: v[CQETimestamp],
		Opcode: Opcode(v[CQESendOpcode]), SQN: uint32(v[CQEQPN]),
		Counter: uint16(v[CQEWQECounter]), OpOwn: opOwnOf(v),
	}
	c.Put(b)
}

func putErrorFields(b []byte, v map[Field]uint64) {
	v[CQESignature] = 0
	e := ErrorCQE{
		UIdx: uint32(v[CQEUIdx]), ByteCount: uint32(v[CQEByteCount]),
		HWSyndrome:     uint8(v[CQEHWSyndrome]),
		HWSyndromeType: uint8(v[CQEHWSyndromeType]), Vendor: uint8(v[CQEVendorSyndrome]),
		Syndrome: Syndrome(v[CQESyndrome]),
		Opcode:   Opcode(v[CQESendOpcode]), QPN: uint32(v[CQEQPN]),
		Counter: uint16(v[CQEWQECounter]), OpOwn: opOwnOf(v),
	}
	e.Put(b)
}

// accessors pairs each fast accessor of a CQE with the field it must agree with.
func accessors() map[Field]func(*CQE) uint64 {
	flag := func(f func(*CQE) bool) func(*CQE) uint64 {
		return func(c *CQE) uint64 {
			if f(c) {
				return 1
			}
			return 0
		}
	}
	return map[Field]func(*CQE) uint64{
		CQEKind:           func(c *CQE) uint64 { return uint64(c.Opcode()) },
		CQEFormat:         func(c *CQE) uint64 { return uint64(c.Format()) },
		CQESolicited:      flag((*CQE).Solicited),
		CQEOwner:          func(c *CQE) uint64 { return uint64(c.Owner()) },
		CQESignature:      func(c *CQE) uint64 { return uint64(c.Signature()) },
		CQEWQECounter:     func(c *CQE) uint64 { return uint64(c.WQECounter()) },
		CQEByteCount:      func(c *CQE) uint64 { return uint64(c.ByteCount()) },
		CQEL3OK:           flag((*CQE).L3OK),
		CQEL4OK:           flag((*CQE).L4OK),
		CQEL3Type:         func(c *CQE) uint64 { return uint64(c.L3Type()) },
		CQEL4Type:         func(c *CQE) uint64 { return uint64(c.L4Type()) },
		CQEIPFragment:     flag((*CQE).Fragment),
		CQEIPExt:          flag((*CQE).IPExt),
		CQEVLANStripped:   flag((*CQE).VLANStripped),
		CQEVLAN:           func(c *CQE) uint64 { return uint64(c.VLAN()) },
		CQETunneled:       flag((*CQE).Tunneled),
		CQEHash:           func(c *CQE) uint64 { return uint64(c.Hash()) },
		CQEHashType:       func(c *CQE) uint64 { return uint64(c.HashType()) },
		CQEChecksum:       func(c *CQE) uint64 { return uint64(c.Checksum()) },
		CQETimestamp:      (*CQE).Timestamp,
		CQEUIdx:           func(c *CQE) uint64 { return uint64(c.UIdx()) },
		CQEMetadata:       func(c *CQE) uint64 { return uint64(c.Metadata()) },
		CQEFlowTag:        func(c *CQE) uint64 { return uint64(c.FlowTag()) },
		CQEQPN:            func(c *CQE) uint64 { return uint64(c.QPN()) },
		CQESendOpcode:     func(c *CQE) uint64 { return uint64(c.SendOpcode()) },
		CQESyndrome:       func(c *CQE) uint64 { return uint64(c.Syndrome()) },
		CQEVendorSyndrome: func(c *CQE) uint64 { return uint64(c.VendorSyndrome()) },
		CQEWQEID:          func(c *CQE) uint64 { return uint64(c.WQEID()) },
		CQEFiller:         flag((*CQE).Filler),
		CQEStrides:        func(c *CQE) uint64 { return uint64(c.Strides()) },
		CQEStridingBytes:  func(c *CQE) uint64 { return uint64(c.StridingBytes()) },
		CQELROSegments:    func(c *CQE) uint64 { return uint64(c.LROSegments()) },
		CQELROPush:        flag((*CQE).LROPush),
		CQELROMinTTL:      func(c *CQE) uint64 { return uint64(c.LROMinTTL()) },
		CQELROWindow:      func(c *CQE) uint64 { return uint64(c.LROWindow()) },
		CQELROAck:         func(c *CQE) uint64 { return uint64(c.LROAck()) },
	}
}

// checkAccessors fails where an accessor and the table read c differently.
func checkAccessors(t *testing.T, c *CQE) {
	t.Helper()
	for f, get := range accessors() {
		if get(c) != f.Get(c[:]) {
			t.Errorf("%s: accessor says %#x, table %#x", f.Name, get(c), f.Get(c[:]))
		}
	}
	if got := OpOwn(c.Opcode(), c.Format(), uint8(CQESolicited.Get(c[:])),
		c.Owner()); got != c.OpOwn() {
		t.Errorf("last byte %#x, packed again %#x", c.OpOwn(), got)
	}
}

func TestAccessorsAgreeWithTables(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seed(t), 0))
	c := new(CQE)
	for range 2000 {
		for i := range c {
			c[i] = byte(rnd.Uint32())
		}
		checkAccessors(t, c)
	}
}

// FuzzCQE reads any 64 bytes as a completion: accessors agree with the tables,
// and printing says something of every form.
func FuzzCQE(f *testing.F) {
	for _, name := range []string{"cqe tx", "cqe rx 1", "cqe title", "cqe tx error",
		"cqe striding filler", "cqe lro"} {
		f.Add(vector(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) != CQESize {
			return
		}
		c := (*CQE)(b)
		checkAccessors(t, c)
		if c.String() == "" || len(hexOf(b)) != 4*42 {
			t.Errorf("%q, %q", c.String(), hexOf(b))
		}
	})
}

// hexOf prints b in lines of four 4-byte groups, each with its offset: the form
// in which manuals and drivers print descriptors.
func hexOf(b []byte) string {
	var s strings.Builder
	for i := 0; i < len(b); i += 16 {
		fmt.Fprintf(&s, "%04x:", i)
		for j := i; j < min(i+16, len(b)); j += 4 {
			fmt.Fprintf(&s, " %x", b[j:min(j+4, len(b))])
		}
		s.WriteByte('\n')
	}
	return s.String()
}

// layoutOf returns the field table of the format, nil of an unknown one.
func layoutOf(f MiniFormat) *Layout {
	switch f {
	case MiniHash:
		return &MiniHashLayout
	case MiniCsum:
		return &MiniCsumLayout
	case MiniTagStride:
		return &MiniTagStrideLayout
	case MiniCsumStride:
		return &MiniCsumStrideLayout
	case MiniHeaderStride:
		return &MiniHeaderStrideLayout
	}
	return nil
}
