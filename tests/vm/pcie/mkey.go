package pcie

import "github.com/rdma-netstack/rdma-netstack/simnic"

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

// mkeyUMEM is the place of a key's memory in a UMEM.
var mkeyUMEM = umemPlace{field{97, 1}, field{800, 32}, field{832, 64}}

const (
	mkeyContext = 16
	mkeyPages   = 272
	modePhys    = 0
	modeMTT     = 1
	modeKLM     = 2 // parts of other keys
	modeKSM     = 3 // likewise, all of one length
)

func (f *Function) createMKey(in, out []byte) error {
	ctx := part(in, mkeyContext, 64)
	variant := uint8(mkcVariant.get(ctx))
	attr := simnic.MKeyAttr{PD: mkcPD.u32(ctx), LocalWrite: mkcLocalWrite.is(ctx),
		Variant: &variant, Free: mkcFree.is(ctx)}
	user, err := f.context(in)
	switch mode := mkcMode.get(ctx); {
	case err != nil:
	case mode == modePhys && user != nil:
		err = errorf(statusBadParam, "a key for physical addresses in a user context")
	case mode == modePhys:
		attr.Mem, err = simnic.NewBankedMemory(f.dma.banks())
	case mode == modeMTT:
		err = f.translated(&attr, in, ctx)
	case mode == modeKLM:
		err = f.joined(&attr, simnic.Parts, in, ctx)
	case mode == modeKSM:
		err = f.joined(&attr, simnic.EqualParts, in, ctx)
	}
	if err != nil {
		return err
	}
	k, err := f.nic.CreateMKey(attr)
	if err != nil {
		return err
	}
	f.objects.mkeys[k.Key()>>8] = k
	if mkeyUMEM.valid.is(in) && !attr.Free {
		f.objects.uses(k.Key()>>8, umemUse{ring: mkeyUMEM.id.u32(in)})
	}
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
	list, err := f.translations(in, shift, skew, int(a.Len))
	if err != nil {
		return err
	}
	pages, err := f.mapPages(list, shift, skew+int(a.Len))
	if err != nil {
		return err
	}
	if a.UMR != nil {
		a.UMR.List = list[:len(pages)]
	}
	a.Mem, err = simnic.NewPagedMemory(pages, skew, int(a.Len))
	return err
}

// translations are the pages of a key: those of a UMEM, or those that the command lists.
func (f *Function) translations(in []byte, shift, skew, size int) ([]uint64, error) {
	if !mkeyUMEM.valid.is(in) {
		return addresses(in, mkeyPages), nil
	}
	u, err := find(f.objects.umems, "UMEM", mkeyUMEM.id.u32(in))
	if err != nil {
		return nil, err
	}
	return u.pageAddresses(mkeyUMEM.offset.get(in), shift, skew, size)
}

// mkeyListed tells how many parts of other keys a command lists, one in an octoword.
var mkeyListed = field{768, 32}

// joined fills in a key over parts of other keys. A free key may have none yet: WQEs fill it in.
func (f *Function) joined(a *simnic.MKeyAttr, of simnic.Translation, in, ctx []byte) error {
	n := int(mkeyListed.get(in))
	if n > (len(in)-mkeyPages)/simnic.KeyPartLen {
		return errorf(statusBadInput, "key of %d keys in a command of %d bytes", n, len(in))
	}
	a.Start, a.Len = mkcStart.get(ctx), mkcLength.get(ctx)
	x := simnic.KeyTranslations{Of: of, LogPage: int(mkcLogPageSize.get(ctx)),
		Translations: int(mkcTranslations.get(ctx))}
	return f.nic.JoinKeys(a, x, mkcUMR.is(ctx),
		in[mkeyPages:mkeyPages+n*simnic.KeyPartLen])
}

// destroyMKey executes DESTROY_MKEY.
func (f *Function) destroyMKey(in, _ []byte) error {
	n := number.u32(in)
	k, err := find(f.objects.mkeys, "memory key", n)
	if err != nil {
		return err
	}
	delete(f.objects.mkeys, n)
	delete(f.objects.inUMEM, n)
	return k.Destroy()
}
