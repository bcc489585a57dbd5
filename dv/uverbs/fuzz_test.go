package uverbs

import "testing"

// FuzzParse parses ioctl buffers. Pointers in them are not followed.
func FuzzParse(f *testing.F) {
	k, c := openFake(f, Options{})
	must[*PD](f)(c.AllocPD())
	for _, call := range k.calls {
		f.Add(call.raw)
	}
	f.Fuzz(func(t *testing.T, buf []byte) {
		p, err := parse(buf)
		if err != nil {
			return
		}
		if len(buf) != hdrLen+attrLen*len(p.attrs) {
			t.Errorf("%d attributes in %d bytes", len(p.attrs), len(buf))
		}
		p.name()
	})
}

// FuzzCaps decodes replies of any content: no division by zero, no negative sizes, and a list of
// facts that is not empty.
func FuzzCaps(f *testing.F) {
	f.Add([]byte{}, []byte{}, []byte{})
	k := &fakeKernel{}
	u, q, d := make([]byte, 72), make([]byte, 304), make([]byte, 112)
	k.ucontext([]byte{16, 0, 0, 0}, u)
	k.device(q, d)
	f.Add(u, q, d)
	f.Fuzz(func(t *testing.T, u, q, d []byte) {
		var a contextAnswer
		var core ExQueryDeviceResp
		var drv Mlx5QueryDeviceResp
		GetStruct(u, &a.driver)
		GetStruct(q, &core)
		GetStruct(d, &drv)
		caps := decodeCaps(a, core, drv)
		if caps.UARsPerPage == 0 || len(caps.Facts()) == 0 {
			t.Errorf("%+v", caps)
		}
		if n := caps.LogTableSize(3); n < 0 || n > MaxLogIndTblSize {
			t.Errorf("table of 1<<%d", n)
		}
		caps.Check()
	})
}

// FuzzBfreg finds registers for any reply: the offset always lies in its page.
func FuzzBfreg(f *testing.F) {
	f.Add(uint32(29), uint32(1), uint32(512))
	f.Add(uint32(8), uint32(16), uint32(0))
	f.Fuzz(func(t *testing.T, index, perPage, regSize uint32) {
		perPage, regSize = perPage%16+1, regSize%513
		page, offset := bfregAddress(index, perPage, regSize)
		if page < 0 || offset < UARBfregBase || offset+8 > int(perPage)*UARSize {
			t.Errorf("register %d at %d/%#x", index, page, offset)
		}
	})
}

// FuzzAsyncEvent decodes event records.
func FuzzAsyncEvent(f *testing.F) {
	f.Add(asyncRecord(8, 0))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if decodeAsyncEvent(b).String() == "" {
			t.Error("prints nothing")
		}
	})
}
