package pcie

import "github.com/rdma-netstack/rdma-netstack/dv/simnic"

// Memory key context (mkc), at byte 16 of CREATE_MKEY; the translation list from byte 272.
var (
	mkcFree         = field{1, 1}
	mkcUMR          = field{16, 1}
	mkcLocalWrite   = field{20, 1}
	mkcMode         = field{22, 2}
	mkcVariant      = field{56, 8}
	mkcPD           = field{104, 24}
	mkcStart        = field{128, 64}
	mkcLength       = field{192, 64}
	mkcTranslations = field{416, 32} // in units of two
	mkcLogPageSize  = field{474, 6}
)

const (
	mkeyContext = 16
	mkeyPages   = 272
	modePhys    = 0
	modeMTT     = 1
)

func (f *Function) createMKey(in, out []byte) error {
	ctx := part(in, mkeyContext, 64)
	variant := uint8(mkcVariant.get(ctx))
	attr := simnic.MKeyAttr{PD: mkcPD.u32(ctx), LocalWrite: mkcLocalWrite.is(ctx),
		Variant: &variant, Free: mkcFree.is(ctx)}
	var err error
	switch mkcMode.get(ctx) {
	case modePhys:
		attr.Mem, err = simnic.NewBankedMemory(f.dma.banks())
	case modeMTT:
		err = f.translated(&attr, in, ctx)
	default: // a key of keys: no queue of the model uses it, so only its number is kept
		return f.createPlain(in, out)
	}
	if err != nil {
		return err
	}
	k, err := f.nic.CreateMKey(attr)
	if err != nil {
		return err
	}
	f.objects.mkeys[k.Key()>>8] = k
	number.set(out, uint64(k.Key()>>8))
	return nil
}

// translated fills in a key over a list of pages. The first page holds the start address.
// A free key has no pages yet.
func (f *Function) translated(a *simnic.MKeyAttr, in, ctx []byte) error {
	shift := int(mkcLogPageSize.get(ctx))
	if shift < 12 || shift > 30 {
		return errorf(statusBadParam, "memory key with pages of 2^%d bytes", shift)
	}
	a.Start, a.Len = mkcStart.get(ctx), mkcLength.get(ctx)
	if a.Len > 1<<40 {
		return errorf(statusBadParam, "memory key of %d bytes", a.Len)
	}
	if mkcUMR.is(ctx) {
		a.UMR = &simnic.KeyTranslations{LogPage: shift, Page: f.dma.region,
			Translations: 2 * int(mkcTranslations.get(ctx))}
	}
	if a.Free {
		return nil
	}
	skew := int(a.Start & (1<<shift - 1))
	mem, err := f.ring(in, mkeyPages, shift, skew, int(a.Len))
	if a.Mem = mem; err == nil && a.UMR != nil {
		n := (skew + int(a.Len) + 1<<shift - 1) >> shift
		a.UMR.List = addresses(in[:mkeyPages+8*n], mkeyPages)
	}
	return err
}

// destroyMKey executes DESTROY_MKEY.
func (f *Function) destroyMKey(in, out []byte) error {
	n := number.u32(in)
	if f.objects.plain[n] {
		return f.destroyPlain(in, out)
	}
	k, err := find(f.objects.mkeys, "memory key", n)
	if err != nil {
		return err
	}
	delete(f.objects.mkeys, n)
	return k.Destroy()
}
