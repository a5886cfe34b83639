#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=64 --gres=gpu:8 --time=04:00:00
#SBATCH --requeue --open-mode=append
#SBATCH --signal=B:USR1@60
host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun python -m torch.distributed.run --nnodes "$SLURM_NTASKS" --nproc-per-node "${PROCESSES:-8}" \
    --rdzv-backend c10d --rdzv-endpoint "$host:${PORT:-29500}" --rdzv-id "$SLURM_JOB_ID" \
    main.py train --auto-resume --run-name "job_$SLURM_JOB_ID" "$@" &
trap 'warned=yes; scancel --signal=TERM "$SLURM_JOB_ID"' USR1  # a minute before its time is over: all processes save
wait $! || wait $!  # the first wait ends with the signal, the second with the training
code=$?
[ -z "$warned" ] || scontrol requeue "$SLURM_JOB_ID"  # saved, to be taken up
exit $code
