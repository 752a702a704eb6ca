"""Learners' answers to the exercises on training: mistakes, and other right answers."""

# preference_loss has this line twice
MARGIN = "margin = beta * ((chosen - reference_chosen) - (rejected - reference_rejected))"
WRONG: dict[str, list[tuple[str, str]]] = {
    "sampling": [
        ("logits = logits / temperature", "logits = logits * temperature"),
        ("    if temperature == 0:\n", "    if temperature == 0 and False:\n"),  # 0 / 0
        ("    if temperature == 0:\n", "    if temperature < 1e-3:\n"),  # small is not zero
        ("logits < kth", "logits <= kth"),
        # the token that reaches top_p is lost
        ("before >= top_p", "likeliest.cumsum(dim=-1) > top_p"),
        ("before >= top_p", "before > 1 - top_p"),
        # not where the tokens stood
        (".scatter(1, order, before >= top_p)", ".logical_or(before >= top_p)"),
        (".scatter(1, order, before", ".gather(1, order) | (before"),
        # temperature comes first
        ("logits.softmax(dim=-1).sort(", "(logits * temperature).softmax(dim=-1).sort("),
        ("generator=generator", "generator=None"),
        ("torch.multinomial(probabilities, num_samples=1, generator=generator)[:, 0]", "probabilities.argmax(-1)"),
        ("generator=generator)[:, 0]", "generator=generator)"),
        ("min(top_k, logits.shape[-1])", "top_k"),  # k may be above V
        (".values[:, -1:]", ".values[:, :1]"),  # only the likeliest
        ("sort(descending=True)", "sort()"),
    ],
    "bpe": [
        # ties by the alphabet
        ("-counts[pair], ids[pair[0]], ids[pair[1]]", "-counts[pair], pair"),
        ("-counts[pair], ids[pair[0]], ids[pair[1]]", "-counts[pair],"),  # the first one seen
        ("+ words[word]", "+ 1"),  # not as often as the word occurs
        ("i += 2", "i += 1"),
        # "ba b" holds "a b"
        ("    result: list[str] = []", '    return " ".join(tokens).replace(" ".join(pair), "".join(pair)).split(" ")'),
        ("min(pairs, key=rank.__getitem__)", "pairs[0]"),  # from left to right
        ("min(pairs, key=rank.__getitem__)", "max(pairs, key=len)"),
        ("if not counts:", "if len(counts) < 2:"),
        ("for pair in pairwise(tokens):", "for pair in set(pairwise(tokens)):"),  # aaa has a pair twice
        ("while len(merges) < count:", "while len(merges) <= count:"),
        ("result.append(tokens[i] + tokens[i + 1])", "result.append(tokens[i + 1] + tokens[i])"),
        ("joined(tokens, best) for word, tokens in splits.items()", "joined(list(word), best) for word in splits"),
        ("best = min(counts", "best = max(counts"),
        ("return [ids[token] for token in tokens]", "return tokens"),
    ],
    "label_mask": [
        (
            "labels[i] = token\n            is_answer = token != end",
            "is_answer = token != end\n            labels[i] = token if is_answer else IGNORED",
        ),
        ("ids[max(0, i + 1 - len(header)) : i + 1] == header", "token == header[-1]"),
        ("ids[max(0, i + 1 - len(header)) : i + 1] == header", "ids[max(0, i - 1) : i + 1] == header[1:]"),
        ("is_answer = token != end", "is_answer = True"),  # what the user says next is trained
        ("    return labels", "    return labels[1:] + [IGNORED]"),  # the shift is the loss's
        ("        if is_answer:", "        if is_answer and IGNORED not in labels[:i]:"),
        ("[IGNORED] * len(ids)", "[0] * len(ids)"),
        ("is_answer = False\n    for", "is_answer = True\n    for"),
        ("ids[max(0, i + 1 - len(header)) : i + 1] == header", "token == header[0]"),  # the user's turn, too
        ("ids[max(0, i + 1 - len(header)) : i + 1] == header", "ids[i : i + len(header)] == header"),  # the header, too
        ("is_answer = token != end", "is_answer = token not in (end, header[-1])"),  # a line end is no end
        ("labels[i] = token\n", "labels[i] = True\n"),
        ("    return labels", "    return [label for label in labels if label != IGNORED]"),
    ],
    "lora": [
        ("(x @ a.T @ b.T) * (alpha / a.shape[0])", "(x @ a.T @ b.T) * alpha"),
        ("(x @ a.T @ b.T) * (alpha / a.shape[0])", "(x @ a.T @ b.T) * (alpha / a.shape[1])"),
        ("x @ weight.T + ", ""),
        ("(b @ a) * (alpha / a.shape[0])", "(b @ a)"),
        ("return weight + ", "weight += "),  # returns nothing, and changes the frozen matrix
        ("weight + (b @ a) * (alpha / a.shape[0])", "weight.add_((b @ a) * (alpha / a.shape[0]))"),
        ("(x @ a.T @ b.T) * (alpha / a.shape[0])", "(x @ b.T @ a.T) * (alpha / a.shape[0])"),
        ("(x @ a.T @ b.T) * (alpha / a.shape[0])", "(x @ a.T @ b.T) * (a.shape[0] / alpha)"),
        ("x @ weight.T + (x", "x @ weight + (x"),
        ("return weight + (b @ a)", "return weight - (b @ a)"),
        ("weight + (b @ a) * (alpha / a.shape[0])", "weight + (b @ a) * (alpha / b.shape[0])"),
        ("weight + (b @ a) * (alpha / a.shape[0])", "weight + (b @ a) * (alpha / a.shape[0] ** 0.5)"),
        ("return weight + (b @ a)", "return (b @ a)"),
    ],
    "preference_loss": [
        # inf far from 0
        ("-torch.nn.functional.logsigmoid(margin)", "-torch.sigmoid(margin).log()"),
        ("-torch.nn.functional.logsigmoid(margin)", "torch.nn.functional.logsigmoid(margin)"),
        ("-torch.nn.functional.logsigmoid(margin)", "-torch.nn.functional.logsigmoid(margin).mean()"),
        ("torch.sigmoid(-margin)", "torch.sigmoid(margin)"),
        ("beta * torch.sigmoid(-margin)", "torch.sigmoid(-margin)"),
        ("return -push, push", "return push, -push"),
        ("return -push, push", "return -push"),
        (f"{MARGIN}\n    return", "margin = beta * (chosen - rejected)\n    return"),  # no reference
        (f"{MARGIN}\n    return", f"{MARGIN.replace('beta * ', '')}\n    return"),
        (f"{MARGIN}\n    return", f"{MARGIN.replace(') - (rej', ') + (rej')}\n    return"),
        (f"{MARGIN}\n    return", f"{MARGIN.replace('beta', '-beta')}\n    return"),
        (f"{MARGIN}\n    push", "margin = beta * (chosen - rejected)\n    push"),
        ("-torch.nn.functional.logsigmoid(margin)", "torch.relu(1 - margin)"),  # a hinge
        ("beta * torch.sigmoid(-margin)", "beta * torch.sigmoid(margin) * torch.sigmoid(-margin)"),
    ],
    "group_advantage": [
        ("groups.mean(dim=1, keepdim=True)", "rewards.mean()"),  # of all questions
        ("rewards.view(-1, group_size)", "rewards.view(group_size, -1).T"),  # not side by side
        ("groups.std(dim=1, keepdim=True)", "groups.std(dim=1, keepdim=True, correction=0)"),
        (".where(differ, 0.0)", ""),  # the last digit of a mean
        ("groups.amax(dim=1, keepdim=True) > groups.amin(dim=1, keepdim=True)", "groups.std(dim=1, keepdim=True) != 0"),
        ("groups.std(dim=1, keepdim=True) + EPSILON", "groups.std(dim=1, keepdim=True)"),
        ("    if scaled:", "    if not scaled:"),
        (".where(differ, 0.0).flatten()", ".where(differ, 0.0)"),
        ("groups - groups.mean(dim=1, keepdim=True)", "groups"),
        ("groups.mean(dim=1, keepdim=True)", "groups.mean(dim=0, keepdim=True)"),  # of other questions
        ("groups.mean(dim=1, keepdim=True)", "groups.median(dim=1, keepdim=True).values"),
        ("groups.std(dim=1, keepdim=True)", "rewards.std()"),
        ("groups.std(dim=1, keepdim=True)", "groups.var(dim=1, keepdim=True)"),
        ("keepdim=True) + EPSILON)", "keepdim=True) + 1e-2)"),
        ("groups - groups.mean(dim=1, keepdim=True)", "groups.sub_(groups.mean(dim=1, keepdim=True))"),
    ],
    "optimizer_step": [
        ("momentum * buffer + grad", "momentum * buffer + (1 - momentum) * grad"),
        ("weight - lr * buffer", "weight - lr * grad"),
        ("mean / (1 - beta1**step)", "mean"),  # no correction
        ("square / (1 - beta2**step)", "square / (1 - beta2)"),
        (
            "    weight = weight * (1 - lr * weight_decay)\n",
            "    grad = grad + weight_decay * weight\n",
        ),  # Adam, not AdamW
        ("(corrected_square.sqrt() + eps)", "(corrected_square + eps).sqrt()"),
        ("eps), mean, square", "eps), corrected_mean, corrected_square"),
        ("buffer = momentum * buffer + grad", "buffer = buffer.mul_(momentum).add_(grad)"),
        ("return weight - lr * buffer, buffer", "return buffer, weight - lr * buffer"),
        ("return weight - lr * buffer, buffer", "return weight + lr * buffer, buffer"),
        ("return weight - lr * buffer, buffer", "return weight - lr * (grad + momentum * buffer), buffer"),  # Nesterov
        ("(1 - beta2) * grad**2", "(1 - beta2) * grad.abs()"),
        ("(1 - lr * weight_decay)", "(1 - weight_decay)"),
        ("beta1, beta2 = betas", "beta2, beta1 = betas"),
        ("lr * corrected_mean", "lr * grad"),
    ],
    "muon": [
        ("matrix / matrix.norm()", "matrix"),
        ("matrix / matrix.norm()", "matrix / matrix.abs().max()"),
        ("(B * gram + C * gram @ gram) @ x", "(B * gram + C * gram * gram) @ x"),
        (".T, steps).T", ".T, steps)"),
        ("update = momentum * buffer + (1 - momentum) * grad", "update = buffer"),
        ("lr * max(1, rows / columns)", "lr * max(1, columns / rows)"),
        ("buffer = momentum * buffer + (1 - momentum) * grad", "buffer = momentum * buffer + grad"),
        ("A * x + (B * gram + C * gram @ gram) @ x", "A * x + B * gram @ x"),  # no fifth power
        ("A * x + (B", "(B"),
        ("gram = x @ x.T", "gram = x.T @ x"),
        ("range(steps)", "range(steps + 1)"),
        (" ** 0.5 * newton_schulz", " * newton_schulz"),
        ("newton_schulz(update), buffer", "newton_schulz(grad), buffer"),
        ("newton_schulz(update), buffer", "newton_schulz(update), update"),
        ("return weight - lr", "return weight + lr"),
    ],
}
RIGHT: dict[str, list[str]] = {
    "sampling": [
        """
def probabilities(logits, temperature=1.0, top_k=None, top_p=None):
    if temperature == 0:
        result = torch.zeros_like(logits)
        result[range(len(logits)), logits.argmax(-1)] = 1
        return result
    p = F.softmax(logits / temperature, dim=-1)
    result = []
    for row in p:
        if top_k:
            row = row * (row >= row.sort().values[-top_k:][0])
            row = row / row.sum()
        if top_p is not None:
            total, keep = 0.0, torch.zeros_like(row)
            for i in row.argsort(descending=True):
                keep[i] = 1
                total += row[i]
                if total >= top_p:
                    break
            row = row * keep
        result.append(row / row.sum())
    return torch.stack(result)


def sample(probabilities, generator):
    threshold = torch.rand(len(probabilities), 1, generator=generator)
    below = probabilities.cumsum(-1) <= threshold
    return below.sum(-1).clamp(max=probabilities.shape[-1] - 1)
""",
    ],
    "bpe": [
        """
def ids_of(letters, merges):
    return {token: i for i, token in enumerate([*letters, *(a + b for a, b in merges)])}


def joined(tokens, pair):
    out = []
    for token in tokens:
        if out and (out[-1], token) == pair and not out_is_new:
            out[-1] += token
            out_is_new = True
        else:
            out.append(token)
            out_is_new = False
    return out


def learn_merges(words, letters, count):
    from collections import Counter

    merges, pieces = [], {word: list(word) for word in words}
    for _ in range(count):
        counts, ids = Counter(), ids_of(letters, merges)
        for word, n in words.items():
            for a, b in zip(pieces[word], pieces[word][1:]):
                counts[ids[a], ids[b], a, b] += n
        if not counts:
            return merges
        most = max(counts.values())
        merges.append(min(key for key in counts if counts[key] == most)[2:])
        pieces = {word: joined(tokens, merges[-1]) for word, tokens in pieces.items()}
    return merges


def encode_word(word, letters, merges):
    tokens = list(word)
    for pair in merges:
        tokens = joined(tokens, pair)
    return [ids_of(letters, merges)[token] for token in tokens]
""",
    ],
    "label_mask": [
        """
def label_mask(ids, header, end):
    labels, n = torch.full((len(ids),), -100), len(header)
    for i in range(len(ids) - n + 1):
        if ids[i : i + n] == header:
            stop = ids.index(end, i + n) + 1 if end in ids[i + n :] else len(ids)
            labels[i + n : stop] = torch.tensor(ids[i + n : stop])
    return labels
""",
    ],
    "lora": [
        """
def adapted(x, weight, a, b, alpha):
    return F.linear(x, weight) + alpha / len(a) * F.linear(F.linear(x, a), b)


def merged(weight, a, b, alpha):
    return torch.addmm(weight, b, a, alpha=alpha / b.shape[1])
""",
    ],
    "preference_loss": [
        """
def preference_loss(chosen, rejected, reference_chosen, reference_rejected, beta):
    return F.softplus(beta * (rejected - reference_rejected) - beta * (chosen - reference_chosen))


def gradient(chosen, rejected, reference_chosen, reference_rejected, beta):
    m = beta * (chosen - rejected - reference_chosen + reference_rejected)
    return -beta / (1 + m.exp()), beta / (1 + m.exp())
""",
    ],
    "group_advantage": [
        """
def group_advantage(rewards, group_size, scaled):
    result = []
    for group in rewards.split(group_size):
        if (group == group[0]).all():
            result.append(torch.zeros_like(group))
        else:
            result.append((group - group.mean()) / (group.std() + 0.0001 if scaled else 1))
    return torch.cat(result)
""",
    ],
    "optimizer_step": [
        """
def sgd(weight, grad, buffer, lr, momentum):
    buffer = torch.add(grad, buffer, alpha=momentum)
    return torch.add(weight, buffer, alpha=-lr), buffer


def adamw(weight, grad, mean, square, step, lr, betas, eps, weight_decay):
    mean = torch.lerp(mean, grad, 1 - betas[0])
    square = torch.lerp(square, grad * grad, 1 - betas[1])
    root = square.sqrt() / (1 - betas[1] ** step) ** 0.5 + eps
    return weight - lr * (weight_decay * weight + mean / (1 - betas[0] ** step) / root), mean, square
""",
    ],
    "muon": [
        """
def newton_schulz(matrix, steps=5):
    x = matrix / (matrix**2).sum().sqrt()
    for _ in range(steps):
        x = 3.4445 * x - 4.7750 * x @ x.T @ x + 2.0315 * x @ x.T @ x @ x.T @ x
    return x


def muon(weight, grad, buffer, lr, momentum):
    buffer = torch.lerp(buffer, grad, 1 - momentum)
    step = newton_schulz(torch.lerp(grad, buffer, momentum))
    return weight - lr * max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5 * step, buffer
""",
    ],
}
