//! Attention of many queries in the forms that the next product reads.

use super::Cuda;
use super::tensor::{Forms, Operand, absent};
use kernels::cuda::{AttentionArgs, CudaResult, OperandRef};

impl Cuda {
    /// Attention of many queries. Its kernel writes f32 and bf16; int8 is made from f32.
    pub(super) fn attend_many(
        &self,
        out: &mut Operand,
        args: &AttentionArgs<'_>,
    ) -> CudaResult<()> {
        let forms = self.forms(args.n_tokens);
        if !forms.int8 {
            return self.gpu.attention_prefill(&out.get(), args);
        }
        let with_f32 = Forms { f32: true, ..forms };
        out.resize(&self.gpu, &self.epoch, args.n_tokens, with_f32)?;
        let all = out.get();
        let first = OperandRef { int8: None, ..all };
        self.gpu.attention_prefill(&first, args)?;
        let second = OperandRef { int8: all.int8, ..OperandRef::default() };
        let n = args.n_tokens * out.row_len;
        match all.f32 {
            Some(values) => self.gpu.convert(&second, values.span(0..n)),
            None => Err(absent("attention output in f32")),
        }
    }
}
