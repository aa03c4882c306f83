/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What Valgrind's translation of a program's code is given: calls of the functions named on_* in input_valgrind.c, which
 * this is a part of. */

/* `second` may be null: a function of one argument. */
static void add_call(IRSB *out, const HChar *name, void *function, IRExpr *first, IRExpr *second, IRExpr *guard)
{
    IRExpr **arguments = second ? mkIRExprVec_2(first, second) : mkIRExprVec_1(first);
    IRDirty *call = unsafeIRDirty_0_N(second ? 2 : 1, name, VG_(fnptr_to_fnentry)(function), arguments);

    if (guard)
        call->guard = guard;
    addStmtToIRSB(out, IRStmt_Dirty(call));
}

/* An aligned access of at most eight bytes is in one cell; whether it is aligned is only known for constants. */
static Bool is_in_one_cell(const IRExpr *address, Int bytes)
{
    if (bytes == 1)
        return True;
    return address->tag == Iex_Const && (address->Iex.Const.con->Ico.U64 & 7) + bytes <= 8;
}

static void add_load(IRSB *out, IRExpr *address, Int bytes, IRExpr *guard)
{
    IRExpr *size = mkIRExpr_HWord(bytes);

    if (is_in_one_cell(address, bytes))
        add_call(out, "on_load", on_load, address, NULL, guard);
    else if (bytes <= 8)
        add_call(out, "on_short_load", on_short_load, address, size, guard);
    else
        add_call(out, "on_wide_load", on_wide_load, address, size, guard);
}

static void add_store(IRSB *out, IRExpr *address, Int bytes, IRExpr *guard)
{
    IRExpr *size = mkIRExpr_HWord(bytes);

    if (is_in_one_cell(address, bytes))
        add_call(out, "on_store", on_store, address, NULL, guard);
    else if (bytes <= 8)
        add_call(out, "on_short_store", on_short_store, address, size, guard);
    else
        add_call(out, "on_wide_store", on_wide_store, address, size, guard);
}

/* Bytes that a repeated move handles at the cost of a block: as much as libc's loops of vectors do in one. */
enum { BYTES_PER_BLOCK = 128 };

/* How many bytes a round of `rep movs` or `rep stos` handles; 0: the instruction at `code` is none. */
static UInt bytes_per_round(const UChar *code, UInt length)
{
    Bool is_repeated = False, is_wide = False, is_short = False;

    for (; length > 1; code++, length--) {
        if (*code == 0xf2 || *code == 0xf3)
            is_repeated = True;
        else if (*code == 0x66)
            is_short = True;
        else if ((*code & 0xf0) == 0x40)
            is_wide = (*code & 8) != 0;
        else
            return 0;
    }
    if (!is_repeated || length != 1)
        return 0;
    if (*code == 0xa4 || *code == 0xaa)
        return 1;
    if (*code == 0xa5 || *code == 0xab)
        return is_wide ? 8 : is_short ? 2 : 4;
    return 0;
}

/* How many rounds of the instruction at a superblock's beginning are in it: Valgrind unrolls short loops. */
static UInt rounds_in(const IRSB *in, Addr begin)
{
    UInt rounds = 0;
    Int at;

    for (at = 0; at < in->stmts_used; at++) {
        const IRStmt *statement = in->stmts[at];

        rounds += statement && statement->tag == Ist_IMark && statement->Ist.IMark.addr == begin;
    }
    return rounds;
}

/* What the superblock costs: one, or, where each round of a repeated move is one, one in so many of these. They are told
 * by what is left to do: rcx goes down by `rounds` from one superblock to the next. */
static IRExpr *cost_of(IRSB *out, const IRSB *in, const IRStmt *first)
{
    UInt bytes = bytes_per_round((const UChar *)first->Ist.IMark.addr, first->Ist.IMark.len);
    IRTemp left, within, counts, cost;

    if (!bytes)
        return IRExpr_Const(IRConst_U64(1));
    left = newIRTemp(out->tyenv, Ity_I64);
    within = newIRTemp(out->tyenv, Ity_I64);
    counts = newIRTemp(out->tyenv, Ity_I1);
    cost = newIRTemp(out->tyenv, Ity_I64);
    addStmtToIRSB(out, IRStmt_WrTmp(left, IRExpr_Get(offsetof(VexGuestAMD64State, guest_RCX), Ity_I64)));
    addStmtToIRSB(out, IRStmt_WrTmp(within, IRExpr_Binop(Iop_And64, IRExpr_RdTmp(left),
                                                         IRExpr_Const(IRConst_U64(BYTES_PER_BLOCK / bytes - 1)))));
    addStmtToIRSB(out, IRStmt_WrTmp(counts, IRExpr_Binop(Iop_CmpLT64U, IRExpr_RdTmp(within),
                                                         IRExpr_Const(IRConst_U64(rounds_in(in, first->Ist.IMark.addr))))));
    addStmtToIRSB(out, IRStmt_WrTmp(cost, IRExpr_Unop(Iop_1Uto64, IRExpr_RdTmp(counts))));
    return IRExpr_RdTmp(cost);
}

static void add_block_count(IRSB *out, const IRSB *in, const IRStmt *first)
{
    IRExpr *where = mkIRExpr_HWord((HWord)&blocks), *cost = cost_of(out, in, first);
    IRTemp before = newIRTemp(out->tyenv, Ity_I64), after = newIRTemp(out->tyenv, Ity_I64);

    addStmtToIRSB(out, IRStmt_WrTmp(before, IRExpr_Load(Iend_LE, Ity_I64, where)));
    addStmtToIRSB(out, IRStmt_WrTmp(after, IRExpr_Binop(Iop_Add64, IRExpr_RdTmp(before), cost)));
    addStmtToIRSB(out, IRStmt_Store(Iend_LE, where, IRExpr_RdTmp(after)));
}

static Bool is_next(const IRSB *in, IRTemp value)
{
    return in->next->tag == Iex_RdTmp && in->next->Iex.RdTmp.tmp == value;
}

static Int bytes_of(const IRSB *in, const IRExpr *value)
{
    return sizeofIRType(typeOfIRExpr(in->tyenv, value));
}

/* The statement before `end` that gives a temporary its value; null if it is another kind of statement. */
static const IRExpr *value_of(const IRSB *in, Int end, const IRExpr *what)
{
    Int at;

    if (what->tag == Iex_RdTmp)
        for (at = end - 1; at >= 0; at--)
            if (in->stmts[at]->tag == Ist_WrTmp && in->stmts[at]->Ist.WrTmp.tmp == what->Iex.RdTmp.tmp)
                return in->stmts[at]->Ist.WrTmp.data;
    return NULL;
}

static Bool is_thread_pointer(const IRSB *in, Int end, const IRExpr *what)
{
    const IRExpr *value = value_of(in, end, what);

    return value && value->tag == Iex_Get && value->Iex.Get.offset == offsetof(VexGuestAMD64State, guest_FS_CONST);
}

/*
 * Whether the address that statement `at` loads from is that of a variable of libc's own, or in the thread's control
 * block, where the canary of the stack protector lies: no input of any routine.
 */
static Bool is_of_libc(const IRSB *in, Int at, const IRExpr *address, enum kind kind)
{
    const IRExpr *sum = value_of(in, at, address), *one, *other;

    if (address->tag == Iex_Const)
        return kind == LIBC;
    if (is_thread_pointer(in, at, address))
        return True;
    if (!sum || sum->tag != Iex_Binop || sum->Iex.Binop.op != Iop_Add64)
        return False;
    one = sum->Iex.Binop.arg1;
    other = sum->Iex.Binop.arg2;
    if (!is_thread_pointer(in, at, one)) {
        one = sum->Iex.Binop.arg2;
        other = sum->Iex.Binop.arg1;
        if (!is_thread_pointer(in, at, one))
            return False;
    }
    return kind == LIBC || (other->tag == Iex_Const && (Long)other->Iex.Const.con->Ico.U64 >= 0);
}

static void add_accesses(IRSB *out, const IRSB *in, Int at, enum kind kind)
{
    const IRStmt *statement = in->stmts[at];
    Bool reads_count = kind != HIDDEN;

    switch (statement->tag) {
    case Ist_WrTmp: {
        const IRExpr *value = statement->Ist.WrTmp.data;

        if (value->tag == Iex_Load && reads_count && !is_next(in, statement->Ist.WrTmp.tmp) &&
            !is_of_libc(in, at, value->Iex.Load.addr, kind))
            add_load(out, value->Iex.Load.addr, sizeofIRType(value->Iex.Load.ty), NULL);
        break;
    }
    case Ist_Store:
        add_store(out, statement->Ist.Store.addr, bytes_of(in, statement->Ist.Store.data), NULL);
        break;
    case Ist_LoadG: {
        const IRLoadG *load = statement->Ist.LoadG.details;
        IRType result, loaded;

        typeOfIRLoadGOp(load->cvt, &result, &loaded);
        if (reads_count)
            add_load(out, load->addr, sizeofIRType(loaded), load->guard);
        break;
    }
    case Ist_StoreG: {
        const IRStoreG *store = statement->Ist.StoreG.details;

        add_store(out, store->addr, bytes_of(in, store->data), store->guard);
        break;
    }
    case Ist_CAS: {
        const IRCAS *swap = statement->Ist.CAS.details;
        Int bytes = bytes_of(in, swap->dataLo) * (swap->dataHi ? 2 : 1);

        if (reads_count)
            add_load(out, swap->addr, bytes, NULL);
        add_store(out, swap->addr, bytes, NULL);
        break;
    }
    case Ist_Dirty: {
        const IRDirty *call = statement->Ist.Dirty.details;

        if ((call->mFx == Ifx_Read || call->mFx == Ifx_Modify) && reads_count)
            add_load(out, call->mAddr, call->mSize, call->guard);
        if (call->mFx == Ifx_Write || call->mFx == Ifx_Modify)
            add_store(out, call->mAddr, call->mSize, call->guard);
        break;
    }
    default:
        break;
    }
}

/* Whether the way out leads to what a constant address holds, as in the PLT. */
static Bool leads_through_table(const IRSB *in)
{
    Int at;

    if (in->jumpkind != Ijk_Boring || in->next->tag != Iex_RdTmp)
        return False;
    for (at = 0; at < in->stmts_used; at++) {
        const IRStmt *statement = in->stmts[at];

        if (statement && statement->tag == Ist_WrTmp && is_next(in, statement->Ist.WrTmp.tmp))
            return statement->Ist.WrTmp.data->tag == Iex_Load &&
                   statement->Ist.WrTmp.data->Iex.Load.addr->tag == Iex_Const;
    }
    return False;
}

/* The superblock's way out, where that is a call, a return or a jump through a table. */
static void add_exit(IRSB *out, const IRSB *in, const VexGuestLayout *layout, Addr start)
{
    IRTemp stack;

    if (leads_through_table(in))
        add_call(out, "on_jump_through", on_jump_through, mkIRExpr_HWord(start), in->next, NULL);
    if (in->jumpkind != Ijk_Call && in->jumpkind != Ijk_Ret)
        return;
    stack = newIRTemp(out->tyenv, Ity_I64);
    addStmtToIRSB(out, IRStmt_WrTmp(stack, IRExpr_Get(layout->offset_SP, Ity_I64)));
    if (in->jumpkind == Ijk_Ret)
        add_call(out, "on_return", on_return, IRExpr_RdTmp(stack), NULL, NULL);
    else
        add_call(out, "on_call", on_call, in->next, IRExpr_RdTmp(stack), NULL);
}

/* Whether a basic block begins with an instruction: the superblock's first one, or that again where it is a short loop,
 * of which Valgrind puts several rounds into it. Those of a repeated move are counted together. */
static Bool begins_round(const IRStmt *instruction, const IRStmt *first)
{
    if (!first)
        return True;
    return instruction->Ist.IMark.addr == first->Ist.IMark.addr &&
           !bytes_per_round((const UChar *)first->Ist.IMark.addr, first->Ist.IMark.len);
}

static IRSB *instrument(VgCallbackClosure *closure, IRSB *in, const VexGuestLayout *layout, const VexGuestExtents *extents,
                        const VexArchInfo *host, IRType guest_word, IRType host_word)
{
    IRSB *out = deepCopyIRSBExceptStmts(in);
    const IRStmt *first = NULL;
    enum kind kind = ANYBODY;
    DebugInfo *file = VG_(find_DebugInfo)(VG_(current_DiEpoch)(), closure->readdr);
    Int at;

    (void)extents, (void)host;
    tl_assert(guest_word == Ity_I64 && host_word == Ity_I64);
    if (file)
        kind = kind_of_file(VG_(DebugInfo_get_filename)(file));
    for (at = 0; at < in->stmts_used; at++) {
        IRStmt *statement = in->stmts[at];

        if (!statement || statement->tag == Ist_NoOp)
            continue;
        if (statement->tag == Ist_IMark && begins_round(statement, first)) {
            add_block_count(out, in, statement);
            first = statement;
        }
        add_accesses(out, in, at, kind);
        addStmtToIRSB(out, statement);
    }
    add_exit(out, in, layout, closure->nraddr);
    return out;
}
