package mlx5

import (
	"reflect"
	"testing"
)

func TestDescribeSend(t *testing.T) {
	data := func(n uint32, addr uint64) Segment { return Segment{false, n, vecLKey, addr} }
	for name, want := range map[string]WQE{
		"send inline": {"SEND", 5, vecSQN, 4, []Segment{data(42, vecBuffer+18)},
			"SEND ctrl wqe_index=0x5 opcode=0xa qpn=0x123 ds=0x4 ce=0x2 eth inline_hdr_sz=0x12 " +
				"data byte_count=0x2a lkey=0x12a4 addr=0x7f0012345012"},
		"send vlan": {"SEND", 6, vecSQN, 3, []Segment{data(60, vecBuffer)},
			"SEND ctrl wqe_index=0x6 opcode=0xa qpn=0x123 ds=0x3 ce=0x1 eth l4_csum=0x1 " +
				"l3_csum=0x1 insert_vlan=0x1 vlan_tci=0x6064 data byte_count=0x3c lkey=0x12a4 " +
				"addr=0x7f0012345000"},
		"lso": {"LSO", 8, vecSQN, 8, []Segment{data(3000, vecBuffer), data(1000, vecBuffer+0x1000)},
			"LSO ctrl wqe_index=0x8 opcode=0xe qpn=0x123 ds=0x8 ce=0x2 eth l4_csum=0x1 " +
				"l3_csum=0x1 mss=0x5b4 inline_hdr_sz=0x36 data byte_count=0xbb8 lkey=0x12a4 " +
				"addr=0x7f0012345000 data byte_count=0x3e8 lkey=0x12a4 addr=0x7f0012346000"},
		"empw": {"ENHANCED_MPW", 10, vecSQN, 8, []Segment{data(60, vecBuffer),
			data(1514, vecBuffer+0x800), {Inline: true, ByteCount: 60}},
			"ENHANCED_MPW ctrl wqe_index=0xa opcode=0x29 qpn=0x123 ds=0x8 ce=0x2 eth " +
				"l4_csum=0x1 l3_csum=0x1 data byte_count=0x3c lkey=0x12a4 addr=0x7f0012345000 " +
				"data byte_count=0x5ea lkey=0x12a4 addr=0x7f0012345800 inline inline=0x1 " +
				"byte_count=0x3c"},
		"nop": {"NOP", 12, vecSQN, 1, []Segment{},
			"NOP ctrl wqe_index=0xc qpn=0x123 ds=0x1 ce=0x2"},
		"send full inline": {"SEND", 13, vecSQN, 6, []Segment{},
			"SEND ctrl wqe_index=0xd opcode=0xa qpn=0x123 ds=0x6 ce=0x2 eth inline_hdr_sz=0x3c"},
	} {
		if got := DescribeSend(vector(t, name)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
	}
}

func TestDescribeReceive(t *testing.T) {
	got := DescribeReceive(vector(t, "recv 4 segments"))
	want := WQE{DS: 4, Segments: []Segment{{false, 2048, vecLKey, vecBuffer},
		{false, 4096, vecLKey, vecBuffer + 0x2000}, {false, 4096, vecLKey, vecBuffer + 0x4000}},
		Text: "data byte_count=0x800 lkey=0x12a4 addr=0x7f0012345000 " +
			"data byte_count=0x1000 lkey=0x12a4 addr=0x7f0012347000 " +
			"data byte_count=0x1000 lkey=0x12a4 addr=0x7f0012349000"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
}

func TestDescribeCompletion(t *testing.T) {
	for name, want := range map[string]Completion{
		"cqe tx": {Opcode: "REQ", WQECounter: 5, QPN: vecSQN, WQEOpcode: "SEND"},
		"cqe rx 2": {Opcode: "RESP_SEND", Owner: 1, WQECounter: 0x104,
			ByteCount: 60},
		"cqe title": {Opcode: "RESP_SEND", Format: FormatCompressed, WQECounter: 0x10,
			ByteCount: 8},
		"cqe tx error": {Opcode: "REQ_ERR", Syndrome: "local protection error",
			VendorSyndrome: VendorGatherPD, WQECounter: 5, QPN: vecSQN, WQEOpcode: "SEND"},
	} {
		cqe := (*CQE)(vector(t, name))
		want.Text = cqe.String()
		if got := cqe.Describe(); got != want {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
	}
	if got := (&CQE{0x3f: 0xf1}).Describe(); got != (Completion{Opcode: "INVALID", Owner: 1,
		Text: "invalid"}) {
		t.Errorf("never written: %+v", got)
	}
}

// FuzzDescribe: any bytes are described, without their data.
func FuzzDescribe(f *testing.F) {
	for _, name := range []string{"send inline", "send vlan", "lso", "empw", "nop", "recv",
		"recv 4 segments", "cqe tx", "cqe title"} {
		f.Add(vector(f, name))
	}
	f.Add([]byte{7: 0x3f, 15: 0, 32: 0xff, 33: 0xff, 34: 0xff, 35: 0xff, 63: 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= CtrlSegSize {
			w := DescribeSend(b)
			if len(w.Segments) > min(w.DS, len(b)/DSSize) {
				t.Errorf("%d segments in %d DS of %d bytes", len(w.Segments), w.DS, len(b))
			}
		}
		DescribeReceive(b)
		if len(b) >= CQESize {
			(*CQE)(b[:CQESize]).Describe()
		}
	})
}
