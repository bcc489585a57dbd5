package mlx5

import (
	"strings"
	"testing"
)

// put is any of the completions a device writes.
type put interface{ Put(b []byte) }

func TestCQEs(t *testing.T) {
	const csumOK = HdrL4OK | HdrL3OK | HdrL2OK
	udp4 := uint16(csumOK | L4UDP<<HdrL4Shift | L3IPv4<<HdrL3Shift)
	tcp4 := uint16(csumOK | L4TCPData<<HdrL4Shift | L3IPv4<<HdrL3Shift)
	for _, tt := range []struct {
		name   string
		cqe    put
		fields map[Field]uint64 // what the vector says, by table
		says   []string         // what String says, besides
	}{
		{"cqe tx", &TxCQE{UIdx: 7, Timestamp: 0x1122334455,
			Opcode: OpSend, SQN: vecSQN, Counter: 5},
			map[Field]uint64{CQEWQECounter: 5, CQESendOpcode: 0x0a, CQEQPN: vecSQN,
				CQEUIdx: 7, CQEKind: 0, CQEOwner: 0},
			[]string{"REQ SEND", "qpn=0x123"}},
		{"cqe rx 1", &RxCQE{Hash: 0x51ccc178, HashType: 0x55, Checksum: 0x2230,
			Status: tcp4 | HdrVLANStripped,
			VLAN:   0x6064, UIdx: 9, ByteCount: 72, Timestamp: 0x1122334466, Counter: 0x103,
			OpOwn: OpOwn(CQERecv, 0, 0, 0)},
			map[Field]uint64{CQEHash: 0x51ccc178, CQEHashType: 0x55, CQEChecksum: 0x2230,
				CQEL4OK: 1, CQEL3OK: 1, CQEL2OK: 1,
				CQEVLANStripped: 1, CQEL3Type: L3IPv4, CQEL4Type: L4TCPData, CQEIPFragment: 0,
				CQEVLAN: 0x6064, CQEByteCount: 72},
			[]string{"RESP_SEND", "rss_hash=0x51ccc178", "vlan_tci=0x6064"}},
		{"cqe rx 2", &RxCQE{Hash: 0x74c4cb08, HashType: 0xa5, Checksum: 0xebd1,
			Status: udp4, UIdx: 9, ByteCount: 60,
			Timestamp: 0x1122334477, Counter: 0x104, OpOwn: OpOwn(CQERecv, 0, 0, 1)},
			map[Field]uint64{CQEOwner: 1, CQEL4Type: L4UDP, CQEWQECounter: 0x104,
				CQETimestamp: 0x1122334477},
			[]string{"owner=0x1"}},
		{"cqe title", &RxCQE{HashType: 0xa5, Status: udp4, UIdx: 9,
			ByteCount: 8, Timestamp: 0x1122334488,
			Counter: 0x10, OpOwn: OpOwn(CQERecv, FormatCompressed, 0, 0)},
			map[Field]uint64{CQEFormat: FormatCompressed, CQEByteCount: 8}, []string{"format=0x3"}},
		{"cqe tx error", &ErrorCQE{UIdx: 7, HWSyndrome: 0x93, Vendor: VendorGatherPD,
			Syndrome: SynLocalProtection,
			Opcode:   OpSend, QPN: vecSQN, Counter: 5, OpOwn: OpOwn(CQEReqErr, 0, 1, 0)},
			map[Field]uint64{CQESyndrome: 4, CQEVendorSyndrome: 0x52,
				CQEHWSyndrome: 0x93, CQESolicited: 1},
			[]string{"REQ_ERR local protection error", "vendor_err_synd=0x52"}},
		{"cqe tx flushed", &ErrorCQE{UIdx: 7, Vendor: VendorFlushed, Syndrome: SynFlushed,
			Opcode: OpSend, QPN: vecSQN,
			Counter: 6, OpOwn: OpOwn(CQEReqErr, 0, 1, 0)},
			map[Field]uint64{CQESyndrome: 5, CQEVendorSyndrome: 0xf9},
			[]string{"work request flushed"}},
		{"cqe rx protection", &ErrorCQE{UIdx: 9, Vendor: VendorRxData,
			Syndrome: SynLocalProtection, Counter: 0x103,
			OpOwn: OpOwn(CQERecvErr, 0, 1, 0)},
			map[Field]uint64{CQEKind: 14, CQEWQECounter: 0x103}, []string{"RESP_ERR"}},
		{"cqe rx length", &ErrorCQE{UIdx: 9, ByteCount: 9014,
			Syndrome: SynLocalLength, Counter: 0x103,
			OpOwn: OpOwn(CQERecvErr, 0, 1, 0)},
			map[Field]uint64{CQEByteCount: 9014, CQESyndrome: 1}, []string{"local length error"}},
		{"cqe striding", &RxCQE{Hash: 0x74c4cb08, HashType: 0xa5,
			Checksum: 0xebd1, Status: udp4, UIdx: 9,
			ByteCount: 1<<16 | 60, Counter: 5, WQEID: 3, OpOwn: OpOwn(CQERecv, 0, 0, 0)},
			map[Field]uint64{CQEWQEID: 3, CQEStrides: 1, CQEStridingBytes: 60,
				CQEFiller: 0, CQEWQECounter: 5}, nil},
		{"cqe striding jumbo", &RxCQE{Hash: 0x51ccc178, HashType: 0x55, Status: tcp4, UIdx: 9,
			ByteCount: 5<<16 | 9014, Counter: 6, WQEID: 3, OpOwn: OpOwn(CQERecv, 0, 0, 0)},
			map[Field]uint64{CQEStrides: 5, CQEStridingBytes: 9014, CQEFiller: 0}, nil},
		{"cqe striding filler", &RxCQE{UIdx: 9, ByteCount: 1<<31 | 5<<16, Counter: 11, WQEID: 3,
			OpOwn: OpOwn(CQERecv, 0, 0, 0)},
			map[Field]uint64{CQEStrides: 5, CQEStridingBytes: 0, CQEFiller: 1}, nil},
		{"cqe lro", &lroCQE{},
			map[Field]uint64{CQELROSegments: 3, CQELROPush: 1, CQELROMinTTL: 63,
				CQELROWindow: 0x200, CQELROAck: 0x20000100,
				CQEByteCount: 4410},
			[]string{"lro_num_seg=0x3", "lro_ack_seq=0x20000100"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := vector(t, tt.name)
			got := poisoned(CQESize)
			tt.cqe.Put(got)
			same(t, got, want)
			for f, v := range tt.fields {
				if f.Get(want) != v {
					t.Errorf("%s is %#x, want %#x", f.Name, f.Get(want), v)
				}
			}
			for _, s := range tt.says {
				if !strings.Contains((*CQE)(want).String(), s) {
					t.Errorf("%q does not say %q", (*CQE)(want), s)
				}
			}
		})
	}
}

// lroCQE is built as a model would, from a plain completion and the table.
type lroCQE struct{}

func (lroCQE) Put(b []byte) {
	(&RxCQE{Hash: 0x51ccc178, HashType: 0x55, Status: 0x0748, UIdx: 9,
		ByteCount: 4410, Counter: 0x105,
		OpOwn: OpOwn(CQERecv, 0, 0, 0)}).Put(b)
	CQELROPush.Put(b, 1)
	CQELROMinTTL.Put(b, 63)
	CQELROWindow.Put(b, 0x200)
	CQELROAck.Put(b, 0x20000100)
	CQELROSegments.Put(b, 3)
}

func TestMiniCQEs(t *testing.T) {
	want := vector(t, "cqe minis")
	hashes := []uint32{0x8648d97b, 0x8f2d3c7b, 0xc6514a23, 0x8b9fcefb, 0x264410d7,
		0x2f21f5d7, 0x665d838f, 0x89c6b7bb}
	got := poisoned(CQESize)
	for i, h := range hashes {
		MiniHashValue.Put(got[i*MiniCQESize:], uint64(h))
		MiniBytes.Put(got[i*MiniCQESize:], uint64(60+i))
		m := (*CQE)(want).Mini(uint32(i))
		if m.Hash() != h || m.ByteCount() != uint32(60+i) {
			t.Errorf("number %d: hash %#x, %d bytes", i, m.Hash(), m.ByteCount())
		}
	}
	same(t, got, want)
	copy(got, "\x12\x34\x56\x78\x00\x00\x9a\xbc")
	if m := (*CQE)(got).Mini(0); m.Checksum() != 0x1234 ||
		m.StrideIndex() != 0x5678 || m.ByteCount() != 0x9abc {
		t.Errorf("checksum form: %s", MiniCsumStrideLayout.String(got))
	}
	if len(hashes) != MinisPerCQE {
		t.Errorf("%d in a completion", MinisPerCQE)
	}
}

func TestNames(t *testing.T) {
	for _, tt := range []struct {
		got  interface{ String() string }
		want string
	}{
		{OpSend, "SEND"}, {OpLSO, "LSO"}, {OpEnhancedMPW, "ENHANCED_MPW"},
		{Opcode(0x7f), "opcode 0x7f"}, {Opcode(2), "opcode 0x02"},
		{CQERecv, "RESP_SEND"}, {CQEInvalid, "INVALID"}, {CQEOpcode(9), "cqe opcode 9"},
		{CQEOpcode(200), "cqe opcode 200"},
		{SynLocalProtection, "local protection error"}, {Syndrome(3), "syndrome 0x03"},
		{Syndrome(0xff), "syndrome 0xff"},
		{&CQE{63: 0xf0}, "invalid"},
	} {
		if tt.got.String() != tt.want {
			t.Errorf("%q, want %q", tt.got, tt.want)
		}
	}
	for _, s := range Syndromes() {
		if strings.HasPrefix(s.String(), "syndrome") {
			t.Errorf("%#x has no name", uint8(s))
		}
	}
	var err error = SynFlushed
	if err.Error() != "work request flushed" {
		t.Error(err)
	}
}
